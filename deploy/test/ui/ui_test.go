// Package ui opens the gates' page in a real browser, headless Chromium, through a real
// kubectl proxy. The browser is in the Debian package chromium; make test-ui runs this.
package ui

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// Rights on the page alone, and on what it asks too.
var (
	onPage = rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/gates/ui/*"}}
	onAll  = rbacv1.PolicyRule{
		Verbs:           []string{"get", "post"},
		NonResourceURLs: []string{"/gates/ui/*", "/gates/status", "/gates/authz/v1/explain", "/gates/authz/v1/who-can"},
	}
)

// administrator is a proxy for a member of system:masters.
func administrator(t *testing.T, c *framework.Cluster) string {
	t.Helper()
	return proxy(t, c, c.User(t, "root", "system:masters"))
}

func TestAskedByKeyboard(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	namespace := c.Namespace(t)
	c.Grant(t, framework.Grant{Name: "reader", Namespace: namespace, Group: "system:serviceaccounts:" + namespace, Rules: []rbacv1.PolicyRule{framework.May("list", "", "pods")}})
	c.Grant(t, framework.Grant{Name: "prober", User: "eve", Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/probe"}}}})
	b := open(t, administrator(t, c))
	b.shows(t, "#identity", "You are root")

	t.Run("the state of the gates", func(t *testing.T) {
		b.shows(t, "#state-summary", "All gates decide.")
		for _, gate := range []string{"authn", "authz", "admission"} {
			b.shows(t, fmt.Sprintf("[aria-label='gate %s']", gate), "ready", "1 of 1 serving", "127.0.0.1:")
		}
		b.shows(t, "[aria-label='gate authz']", "Follows changes", "yes, ", "Cache hits", "Configuration")
	})
	t.Run("why may it", func(t *testing.T) {
		b.start(t)
		b.tab(t, "Why")
		b.press(t, kb.Enter)
		b.tab(t, "me")
		b.press(t, kb.ArrowDown+kb.ArrowDown)
		b.fill(t, "Service account", namespace+":ann", "Verb", "list", "Resource", "pods", "Namespace", namespace)
		b.shows(t, "#explain .answer", "Yes", "system:serviceaccount:"+namespace+":ann may list pods in namespace "+namespace,
			"rbac", "RoleBinding "+namespace+"/reader", "Group system:serviceaccounts:"+namespace, "Role "+namespace+"/reader",
			"rules[0]", `verbs: list; API groups: ""; resources: pods`)
		if got := eval[string](t, b, focused); !strings.HasPrefix(got, "Yes") {
			t.Errorf("the focus is on %q, want the answer", got)
		}
	})
	t.Run("why may it not", func(t *testing.T) {
		b.start(t)
		b.tab(t, "me")
		b.press(t, kb.ArrowDown+kb.ArrowDown)
		b.fill(t, "Service account", namespace+":ann", "Verb", "list", "Resource", "secrets", "Namespace", namespace)
		b.shows(t, "#explain .answer", "No", "may not list secrets", "rbac", "no opinion", "Nearest rules",
			"rules[0] of Role "+namespace+"/reader, by RoleBinding "+namespace+"/reader", `lacks the resource "secrets"`)
	})
	t.Run("a user with groups", func(t *testing.T) {
		b.start(t)
		b.tab(t, "me")
		b.press(t, kb.ArrowDown)
		b.tab(t, "User")
		b.press(t, "bob")
		b.tab(t, "Groups")
		b.press(t, "cn=a,ou=b"+kb.Enter+"system:serviceaccounts:"+namespace)
		b.fill(t, "Verb", "list", "Resource", "pods", "Namespace", namespace)
		b.shows(t, "#explain .answer", "Yes", "bob may list pods", "Role "+namespace+"/reader")
	})
	t.Run("the caller, as kubectl has resources", func(t *testing.T) {
		b.start(t)
		b.fill(t, "Verb", "update", "Resource", "deployments.apps/scale")
		b.shows(t, "#explain .answer", "Yes", "you may update deployments/scale.apps", "system:masters")
	})
	t.Run("a path", func(t *testing.T) {
		b.start(t)
		b.tab(t, "me")
		b.press(t, kb.ArrowDown)
		b.tab(t, "User")
		b.press(t, "eve")
		b.tab(t, "something with a resource")
		b.press(t, kb.ArrowDown)
		b.fill(t, "HTTP method", "get", "Path", "/probe")
		b.shows(t, "#explain .answer", "Yes", "eve may get /probe", "ClusterRoleBinding prober", "URLs: /probe")
	})
	t.Run("a service account that is none", func(t *testing.T) {
		b.start(t)
		b.tab(t, "me")
		b.press(t, kb.ArrowDown+kb.ArrowDown)
		b.fill(t, "Service account", "ann", "Verb", "list", "Resource", "pods")
		b.shows(t, "#explain .problem", "has to be namespace:name")
	})
	t.Run("who can", func(t *testing.T) {
		b.start(t)
		b.tab(t, "Who can")
		b.press(t, kb.Enter)
		b.fill(t, "Verb", "list", "Resource", "pods", "Namespace", namespace)
		b.shows(t, "#who-can .answer", "These may list pods in namespace "+namespace, "Group", "system:serviceaccounts:"+namespace,
			"RoleBinding "+namespace+"/reader", "ClusterRole cluster-admin", "in all", "system:masters always may.")
		if got := eval[string](t, b, focused); !strings.HasPrefix(got, "These may") {
			t.Errorf("the focus is on %q, want the answer", got)
		}
	})
}

func TestPages(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	namespace := c.Namespace(t)
	c.Grant(t, framework.Grant{Name: "crowd", Namespace: namespace, User: "user-000", Rules: []rbacv1.PolicyRule{framework.May("get", "crowded.example", "things")}})
	bindings := c.Client(t).RbacV1().RoleBindings(namespace)
	binding, err := bindings.Get(t.Context(), "crowd", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 230; i++ {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: fmt.Sprintf("user-%03d", i)})
	}
	if _, err := bindings.Update(t.Context(), binding, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	b := open(t, administrator(t, c))
	b.start(t)
	b.tab(t, "Who can")
	b.press(t, kb.Enter)
	b.fill(t, "Verb", "get", "Resource", "things", "API group", "crowded.example", "Namespace", namespace)
	rows := func(want int) {
		t.Helper()
		framework.Eventually(t, fmt.Sprintf("the table has %d rows", want), func() error {
			if got := eval[int](t, b, "document.querySelectorAll('#who-can tbody tr').length"); got != want {
				return fmt.Errorf("it has %d: %s", got, b.text(t, "#who-can .problem"))
			}
			return nil
		})
	}
	rows(100)
	b.shows(t, "#who-can .answer", "100 so far")
	b.tab(t, "More")
	b.press(t, kb.Enter)
	rows(200)
	if got := eval[int](t, b, "document.activeElement.closest('tr')?.rowIndex ?? -1"); got != 101 {
		t.Errorf("the focus is on row %d, want the first new one, 101", got)
	}
	b.tab(t, "More")
	b.press(t, kb.Enter)
	b.shows(t, "#who-can .answer", "in all", "user-000", "user-229", "cluster-admin")
	if eval[bool](t, b, "[...document.querySelectorAll('#who-can button')].some((e) => e.innerText === 'More' && e.checkVisibility())") {
		t.Error("there is still more")
	}
}

// TestNamesAreText has names that would be HTML, of a user who is asked about and of the
// subject of a binding.
func TestNamesAreText(t *testing.T) {
	const name = `<img src=x onerror="document.title='run'"><b>bold</b>`
	c := framework.Shared(t, framework.Trigate)
	namespace := c.Namespace(t)
	c.Grant(t, framework.Grant{Name: "html", Namespace: namespace, User: name, Rules: []rbacv1.PolicyRule{framework.May("list", "", "pods", name)}})
	b := open(t, administrator(t, c))
	b.start(t)
	b.tab(t, "me")
	b.press(t, kb.ArrowDown)
	b.fill(t, "User", name, "Verb", "list", "Resource", "pods", "Namespace", namespace, "Name", name)
	b.shows(t, "#explain .answer", "Yes", name+" may list pods", "names: "+name)
	b.fill(t, "Verb", "list", "Resource", "pods", "Namespace", namespace, "Name", name)
	b.shows(t, "#who-can .answer", name)
	b.start(t)
	b.tab(t, "me")
	b.press(t, kb.ArrowDown)
	b.fill(t, "User", name, "Verb", "list", "Resource", "secrets", "Namespace", namespace, "Name", name)
	b.shows(t, "#explain .answer", "No", `names: `+name)
	if got := eval[int](t, b, "document.querySelectorAll('img, b').length"); got != 0 {
		t.Errorf("%d elements were made of a name", got)
	}
	if got := eval[string](t, b, "document.title"); got != "Trigate: the gates" {
		t.Errorf("the title is %q: a name was run", got)
	}
	if got := eval[string](t, b, "(() => { try { document.body.innerHTML = '<p>'; return 'it may'; } catch (error) { return error.name; } })()"); got != "TypeError" {
		t.Errorf("a text may become HTML: %s", got)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = nil // The console tells of the try.
}

func TestRefused(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	c.Grant(t, framework.Grant{Name: "sees-page", User: "pam", Rules: []rbacv1.PolicyRule{onPage}})
	t.Run("who may have the page alone", func(t *testing.T) {
		b := open(t, proxy(t, c, c.User(t, "pam")), http.StatusForbidden)
		b.shows(t, "#identity", "You are pam")
		b.shows(t, "#state-summary", "You may not ask this (403)", `User "pam" cannot get path "/gates/status"`)
		b.fill(t, "Verb", "list", "Resource", "pods")
		b.shows(t, "#explain [role=alert]", "You may not ask this (403)", `User "pam" cannot post path "/gates/authz/v1/explain"`)
		b.tab(t, "Explain")
		b.fill(t, "Verb", "list", "Resource", "pods")
		b.shows(t, "#who-can [role=alert]", "You may not ask this (403)", `User "pam" cannot post path "/gates/authz/v1/who-can"`)
		if got := b.text(t, ".answer"); got != "" {
			t.Errorf("there is an answer: %s", got)
		}
	})
	t.Run("who may not have the page", func(t *testing.T) {
		b := open(t, proxy(t, c, c.User(t, "eve")), http.StatusForbidden)
		b.shows(t, "body", `User \"eve\" cannot get path \"/gates/ui/\"`)
		if eval[bool](t, b, "document.querySelector('main') !== null") {
			t.Error("there is a page")
		}
	})
}

// TestToken asks with another token than kubectl proxy's.
func TestToken(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	namespace := c.Namespace(t)
	account := func(name string, rule rbacv1.PolicyRule) string {
		if _, err := c.Client(t).CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.Grant(t, framework.Grant{Name: "token-" + name, User: "system:serviceaccount:" + namespace + ":" + name, Rules: []rbacv1.PolicyRule{rule}})
		return c.ServiceAccountToken(t, namespace, name)
	}
	weak, strong := account("weak", onPage), account("strong", onAll)
	b := open(t, proxy(t, c, c.Token(t, weak)), http.StatusForbidden, http.StatusUnauthorized)
	b.shows(t, "#identity", namespace+":weak")
	b.shows(t, "#state-summary", "You may not ask this (403)")
	b.tab(t, "Ask with a token")
	b.press(t, kb.Enter)
	b.fill(t, "Bearer token", strong)
	b.shows(t, "#identity", namespace+":strong")
	b.shows(t, "#state-summary", "All gates decide.")
	b.fill(t, "Verb", "post", "Resource", "pods")
	b.shows(t, "#explain .answer", "No", "you may not post pods")
	for where, kept := range map[string]string{
		"the storage": "JSON.stringify([{...localStorage}, {...sessionStorage}])", "a cookie": "document.cookie",
		"the URL": "location.href", "the page": "document.documentElement.outerHTML", "its field": "document.getElementById('token').value",
	} {
		if got := eval[string](t, b, kept); strings.Contains(got, strong) {
			t.Errorf("the token is in %s: %s", where, got)
		}
	}
	b.do(t, chromedp.Reload())
	b.shows(t, "#identity", namespace+":weak")
	b.tab(t, "Ask with a token")
	b.press(t, kb.Enter)
	b.fill(t, "Bearer token", "nobody's")
	b.shows(t, "#identity", "The gateway does not know who you are (401)")
}

func TestKilledGates(t *testing.T) {
	c := framework.NewParts(t, framework.PartsOptions{})
	c.Start(t, c.Names()...)
	c.AwaitReady(t)
	b := open(t, administrator(t, c.Cluster), http.StatusServiceUnavailable)
	b.shows(t, "#state-summary", "All gates decide.")
	c.Kill(t, "authz")
	b.shows(t, "#state-summary", "Nothing is decided by: authz.")
	b.shows(t, "[aria-label='gate authz']", "not ready", "UNREACHABLE")
	b.shows(t, "[aria-label='gate admission']", "ready", "SERVING")
	b.fill(t, "Verb", "list", "Resource", "pods")
	b.shows(t, "#explain [role=alert]", "This cannot be decided now (503)", "the authz gate could not decide", "Try again in 1 s.")
	c.Start(t, "authz")
	b.shows(t, "#state-summary", "All gates decide.")
	// Timers never fire early, so this holds on any machine.
	asked := b.asked()
	for i := 1; i < len(asked); i++ {
		if pause := asked[i].Sub(asked[i-1]); pause < 4900*time.Millisecond {
			t.Errorf("the state was asked for after %v, want 5s at least", pause)
		}
	}
}

// TestPause has the browser's clock run on by itself.
func TestPause(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	b := open(t, administrator(t, c))
	b.shows(t, "#state-summary", "All gates decide.")
	before := len(b.asked())
	b.minute(t)
	if got := len(b.asked()) - before; got < 2 || got > 12 {
		t.Errorf("the state was asked for %d times in a minute, want some ten", got)
	}
	b.tab(t, "Pause")
	b.press(t, " ")
	if got := eval[string](t, b, "document.activeElement.getAttribute('aria-pressed')"); got != "true" {
		t.Errorf("aria-pressed = %q", got)
	}
	before = len(b.asked())
	b.minute(t)
	if got := len(b.asked()) - before; got != 0 {
		t.Errorf("the state was asked for %d times in a pause", got)
	}
	b.press(t, " ")
	framework.Eventually(t, "the page asks again", func() error {
		if len(b.asked()) == before {
			return fmt.Errorf("it does not")
		}
		return nil
	})
}

// minute has a minute pass in the page; requests take none of it.
func (b *browser) minute(t *testing.T) {
	t.Helper()
	millis := float64(time.Minute / time.Millisecond)
	over := chromedp.WaitEvent(emulation.VirtualTimeBudgetExpired, func(emulation.EventVirtualTimeBudgetExpired) bool { return true },
		chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
			_, err := chromedp.Call(ctx, emulation.SetVirtualTimePolicy, emulation.SetVirtualTimePolicyParams{
				Policy: emulation.VirtualTimePolicyPauseIfNetworkFetchesPending, Budget: &millis,
			})
			return err
		}))
	if _, err := chromedp.Run(b.ctx, over); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(b.ctx, emulation.SetVirtualTimePolicy, emulation.SetVirtualTimePolicyParams{Policy: emulation.VirtualTimePolicyAdvance}); err != nil {
		t.Fatal(err)
	}
}

// TestNarrow wants the page to fit a narrow screen, with answers. Where
// UI_SCREENSHOTS names a folder, it leaves pictures there to look at.
func TestNarrow(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	namespace := c.Namespace(t)
	c.Grant(t, framework.Grant{Name: "reader", Namespace: namespace, User: strings.Repeat("long-name-", 12), Rules: []rbacv1.PolicyRule{framework.May("list", "", "pods")}})
	b := open(t, administrator(t, c))
	b.start(t)
	b.tab(t, "me")
	b.press(t, kb.ArrowDown)
	b.fill(t, "User", strings.Repeat("long-name-", 12), "Verb", "list", "Resource", "secrets", "Namespace", namespace)
	b.shows(t, "#explain .answer", "Nearest rules")
	b.fill(t, "Verb", "list", "Resource", "pods", "Namespace", namespace)
	b.shows(t, "#who-can .answer", "in all")
	for _, width := range []int64{320, 1100} {
		for _, scheme := range []string{"light", "dark"} {
			b.do(t, chromedp.EmulateViewport(width, 900))
			if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
			}); err != nil {
				t.Fatal(err)
			}
			if got := eval[int64](t, b, "document.documentElement.scrollWidth"); got > width {
				t.Errorf("the page is %d wide on a screen of %d", got, width)
			}
			if dir := os.Getenv("UI_SCREENSHOTS"); dir != "" {
				picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d-%s.png", width, scheme)), picture, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
