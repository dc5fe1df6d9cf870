package ui

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trigate/trigate/deploy/test/framework"
	"github.com/trigate/trigate/gateway/rest/ui"
)

// proxy runs kubectl proxy for a user, and returns the page's URL there.
func proxy(t *testing.T, c *framework.Cluster, user *rest.Config) string {
	t.Helper()
	const name = "test"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: user.Host, CertificateAuthority: user.CAFile, CertificateAuthorityData: user.CAData}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{
		Token: user.BearerToken, ClientCertificateData: user.CertData, ClientKeyData: user.KeyData,
	}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	of := *c
	of.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, of.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	const started = "Starting to serve on "
	line := of.KubectlStream(t, "proxy", "--port=0").Next(t)
	address, ok := strings.CutPrefix(line, started)
	if !ok {
		t.Fatalf("kubectl proxy printed %q, want %q and an address", line, started)
	}
	return "http://" + address + ui.Path
}

// browser is a tab of a Chromium of its own that shows one page.
type browser struct {
	ctx    context.Context
	origin string

	mu       sync.Mutex // guards what the browser tells
	requests []request
	problems []string
}

// request is one that the browser has sent.
type request struct {
	url string
	at  time.Time
}

// open starts Chromium and opens a page. At the end of the test the page must neither
// have asked another origin for anything nor have written an error to its console, but
// for the answers in refused: the browser notes each of these statuses there by itself.
func open(t *testing.T, page string, refused ...int) *browser {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is not installed: it is in the Debian package chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1100, 900))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // It cannot be had as root.
	}
	allocator, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(allocator)
	t.Cleanup(closeTab)
	parsed, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{ctx: ctx, origin: parsed.Scheme + "://" + parsed.Host}
	if err := chromedp.Listen(ctx, b.note); err != nil {
		t.Fatalf("starting %s: %v", chromium, err)
	}
	b.do(t, chromedp.Navigate(page))
	t.Cleanup(func() { b.check(t, refused) })
	return b
}

// note takes note of what the page does.
func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch event := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, request{url: event.Request.URL, at: time.Now()})
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, "exception: "+event.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		b.problems = append(b.problems, fmt.Sprintf("console.%s", event.Type))
	case *log.EventEntryAdded:
		b.problems = append(b.problems, fmt.Sprintf("%s: %s (%s)", event.Entry.Level, event.Entry.Text, event.Entry.URL))
	}
}

// check looks at what the page has done.
func (b *browser) check(t *testing.T, refused []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, request := range b.requests {
		if !strings.HasPrefix(request.url, b.origin+"/") {
			t.Errorf("the page asked for %s, which is not of %s", request.url, b.origin)
		}
	}
problems:
	for _, problem := range b.problems {
		for _, code := range refused {
			if strings.Contains(problem, fmt.Sprintf("responded with a status of %d ", code)) {
				continue problems
			}
		}
		t.Errorf("in the console: %s", problem)
	}
}

// asked returns when the page has asked for the state of the gates.
func (b *browser) asked() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	var times []time.Time
	for _, request := range b.requests {
		if strings.HasSuffix(request.url, "/gates/status") {
			times = append(times, request.at)
		}
	}
	return times
}

func (b *browser) do(t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

// eval evaluates an expression in the page.
func eval[T any](t *testing.T, b *browser, expression string) T {
	t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// text is what an element shows, by its selector.
func (b *browser) text(t *testing.T, selector string) string {
	t.Helper()
	return eval[string](t, b, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
}

// shows waits until an element shows all the texts.
func (b *browser) shows(t *testing.T, selector string, texts ...string) {
	t.Helper()
	framework.Eventually(t, selector+" shows "+strings.Join(texts, ", "), func() error {
		got := b.text(t, selector)
		for _, text := range texts {
			if !strings.Contains(got, text) {
				return fmt.Errorf("no %q in:\n%s", text, got)
			}
		}
		return nil
	})
}

// focused is how the element that has the focus is called: by its label, or its text.
const focused = `(() => {
  const e = document.activeElement;
  const clean = (text) => (text ?? '').replace(/\s+/g, ' ').trim();
  return clean(e.labels?.[0]?.innerText) || clean(e.getAttribute('aria-label')) || clean(e.innerText);
})()`

// tab presses Tab until the focus is where a label or text begins with name, and tells
// that it can be seen to be there.
func (b *browser) tab(t *testing.T, name string) {
	t.Helper()
	const elements = 100 // More than the page has.
	var passed []string
	for range elements {
		b.press(t, kb.Tab)
		got := eval[string](t, b, focused)
		if !strings.HasPrefix(got, name) {
			passed = append(passed, got)
			continue
		}
		if style := eval[string](t, b, "getComputedStyle(document.activeElement).outlineStyle"); style == "none" {
			t.Errorf("the focus is not to be seen on %q", got)
		}
		return
	}
	t.Fatalf("Tab does not come to %q, but to %q", name, passed)
}

func (b *browser) press(t *testing.T, keys string) {
	t.Helper()
	b.do(t, chromedp.KeyEvent(keys))
}

// fill tabs from field to field, which are names and values by turns, and submits with
// Enter.
func (b *browser) fill(t *testing.T, fields ...string) {
	t.Helper()
	for i := 0; i < len(fields); i += 2 {
		b.tab(t, fields[i])
		b.press(t, fields[i+1])
	}
	b.press(t, kb.Enter)
}

// start puts the focus where the keyboard begins when the page is opened.
func (b *browser) start(t *testing.T) {
	t.Helper()
	b.do(t, chromedp.Reload())
	b.shows(t, "#state-summary", "All gates decide.")
}
