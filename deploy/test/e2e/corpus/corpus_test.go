// Package corpus tests that admission answers every request as kube-apiserver does. It
// holds some hundred requests, in files that people read, for each of upstream's
// plugins, each operation and each kind of subresource. They go to stock kube-apiserver
// and to Trigate, and codes, bodies, warnings and audit annotations have to be the same.
package corpus

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// minRequests is how many requests the corpus has at least.
const minRequests = 300

func TestPluginsThatAreOnByDefault(t *testing.T) {
	play(t, byDefault, framework.Shared(t, framework.Stock), framework.Shared(t, framework.Trigate))
}

// AlwaysDeny lets no control plane make what it needs to be ready, so that it comes
// last, over what the others have made.
func TestPluginsThatAreOffByDefault(t *testing.T) {
	settings := writeSettings(t)
	stock := framework.StartStock(t, framework.StockOptions{Args: settings.stock(optionalPlugins)})
	trigate := framework.StartTrigate(t, framework.TrigateOptions{Args: settings.trigate(optionalPlugins)})
	play(t, optional, stock, trigate)

	for _, c := range []*framework.Cluster{stock, trigate} {
		if err := c.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	plugins := append(slices.Clone(optionalPlugins), "AlwaysDeny")
	stock = framework.StartStock(t, framework.StockOptions{Dir: stock.Dir, Args: settings.stock(plugins)})
	trigate = framework.StartTrigate(t, framework.TrigateOptions{Dir: trigate.Dir, Args: settings.trigate(plugins)})
	play(t, alwaysDeny, stock, trigate)
}

func TestTheCorpusIsComplete(t *testing.T) {
	requests := 0
	acts, passes, operations, subresources := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for _, servers := range []string{byDefault, optional, alwaysDeny} {
		for _, file := range load(t, servers) {
			for _, r := range file.Requests {
				if r.Send == "" {
					continue
				}
				requests++
				acts[r.Acts]++
				passes[r.Passes]++
				operations[r.operation()]++
				_, _, subresource := r.resource()
				subresources[subresource]++
			}
		}
	}
	t.Logf("%d requests; operations: %v; subresources: %v", requests, operations, subresources)
	if requests < minRequests {
		t.Errorf("there are %d requests, want %d at least", requests, minRequests)
	}
	plugins := upstreamPlugins(t)
	for _, plugin := range plugins {
		if acts[plugin] == 0 {
			t.Errorf("no request has %s act", plugin)
		}
		if passes[plugin] == 0 {
			t.Errorf("no request passes %s", plugin)
		}
	}
	for _, named := range slices.Sorted(maps.Keys(acts)) {
		if named != "" && !slices.Contains(plugins, named) {
			t.Errorf("no plugin is called %q", named)
		}
	}
	for _, operation := range []string{
		"create", "update", "delete", "deletecollection", "connect",
		"patch merge", "patch strategic", "patch json", "patch apply",
	} {
		if operations[operation] == 0 {
			t.Errorf("no request is a %s", operation)
		}
	}
	for _, subresource := range []string{
		"status", "scale", "binding", "eviction", "ephemeralcontainers", "resize", "token", "finalize",
		"approval", "log", "exec", "attach", "portforward", "proxy",
	} {
		if subresources[subresource] == 0 {
			t.Errorf("no request is for the subresource %s", subresource)
		}
	}
}

// upstreamPlugins are all plugins that stock kube-apiserver says it has.
func upstreamPlugins(t *testing.T) []string {
	t.Helper()
	program, err := framework.Binary("kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.CommandContext(t.Context(), program, "--help").Output()
	if err != nil {
		t.Fatalf("running kube-apiserver --help: %v", err)
	}
	list := regexp.MustCompile(`--enable-admission-plugins .*Comma-delimited list of admission plugins: ([A-Za-z, ]+)\.`).FindSubmatch(help)
	if list == nil {
		t.Fatal("kube-apiserver --help lists no admission plugins")
	}
	return strings.Split(string(list[1]), ", ")
}

// play sends the requests of all files, and compares.
func play(t *testing.T, servers string, stock, trigate *framework.Cluster) {
	t.Helper()
	files := load(t, servers)
	// Those that are alone come first.
	slices.SortStableFunc(files, func(a, b file) int {
		switch {
		case a.Alone == b.Alone:
			return 0
		case a.Alone:
			return -1
		default:
			return 1
		}
	})
	t.Run(servers, func(t *testing.T) {
		for _, file := range files {
			t.Run(strings.TrimSuffix(file.name, ".yaml"), func(t *testing.T) {
				if !file.Alone {
					t.Parallel()
				}
				framework.CompareThese(t, stock, trigate, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
					player := &player{cluster: c, transcript: s, webhook: startWebhook(t), uids: map[string]string{}}
					player.play(t, file)
				})
			})
		}
	})
}

// player sends the requests of one file to one control plane.
type player struct {
	cluster    *framework.Cluster
	transcript *framework.Transcript
	webhook    *framework.Webhook
	uids       map[string]string
}

func (p *player) play(t *testing.T, file file) {
	t.Helper()
	for _, namespace := range file.Namespaces {
		p.makeNamespace(t, namespace)
	}
	for _, r := range file.Requests {
		answer := p.send(t, r)
		if r.Keep != "" {
			p.uids[r.Keep] = answer.String(t, "metadata", "uid")
		}
	}
}

// send sends one request, in its way.
func (p *player) send(t *testing.T, r request) *framework.Answer {
	t.Helper()
	method, target := r.line()
	body, options := p.body(r), r.options()
	if r.Await != "" {
		return p.await(t, r, p.caller(t, r, p.cluster.As), 1)
	}
	if r.Repeated {
		answer := p.await(t, r, p.caller(t, r, p.cluster.As), atOnce)
		p.transcript.Say(answer.Request, map[string]any{
			"code": answer.Code, "warnings": answer.Header.Values("Warning"), "body": answer.Field(t),
			"annotations": answer.Audit.Annotations,
		})
		return answer
	}
	caller := p.caller(t, r, p.transcript.As)
	if r.Prepare != "" {
		caller = p.caller(t, r, p.cluster.As)
	}
	answer := caller.Send(t, method, target, body, options...)
	if err := r.expected(answer); err != nil {
		t.Errorf("%s: %v", answer.Request, err)
	}
	if strings.Contains(body, "generateName") {
		for _, path := range [][]any{{"metadata", "name"}, {"details", "name"}} {
			if name := answer.String(t, path...); name != "" {
				p.transcript.Hide(name, "GENERATED")
			}
		}
	}
	return answer
}

// atOnce is how many of a repeated request are sent at a time, since what refuses one
// may do so for a second only.
const atOnce = 8

// await sends a request, several at a time, until an answer is as expected.
func (p *player) await(t *testing.T, r request, caller *framework.Caller, atOnce int) *framework.Answer {
	t.Helper()
	method, target := r.line()
	body, options := p.body(r), r.options()
	answers, errs := make([]*framework.Answer, atOnce), make([]error, atOnce)
	expected := -1
	framework.Eventually(t, fmt.Sprintf("code %d and %q for %s %s", r.Code, r.Says, method, target), func() error {
		var all sync.WaitGroup
		for i := range atOnce {
			all.Go(func() {
				if answers[i], errs[i] = caller.TrySend(method, target, body, options...); errs[i] == nil {
					errs[i] = r.expected(answers[i])
				}
			})
		}
		all.Wait()
		expected = slices.Index(errs, nil)
		if expected < 0 {
			return errs[0]
		}
		return nil
	})
	return answers[expected]
}

// expected tells how an answer differs from what the request says.
func (r request) expected(answer *framework.Answer) error {
	if answer.Code != r.Code || !strings.Contains(string(answer.Body), r.Says) {
		return fmt.Errorf("got code %d, want %d and %q; the answer was:\n%s", answer.Code, r.Code, r.Says, answer.Body)
	}
	return nil
}

// caller is whoever sends the request.
func (p *player) caller(t *testing.T, r request, as asFunc) *framework.Caller {
	t.Helper()
	if r.As == "" {
		return as(t, p.cluster.Config(t))
	}
	names := strings.Split(r.As, ", ")
	return as(t, p.cluster.User(t, names[0], names[1:]...))
}

// body is the request's body, with what is only known now.
func (p *player) body(r request) string {
	pairs := []string{"$WEBHOOK", p.webhook.URL, "$CA", base64.StdEncoding.EncodeToString(p.webhook.CABundle)}
	for name, uid := range p.uids {
		pairs = append(pairs, "$UID_"+name, uid)
	}
	return strings.NewReplacer(pairs...).Replace(string(r.Body))
}

// options say what a patch is.
func (r request) options() []framework.RequestOption {
	switch r.Patch {
	case "":
		return nil
	case "merge":
		return []framework.RequestOption{framework.MergePatch}
	case "strategic":
		return []framework.RequestOption{framework.StrategicPatch}
	case "json":
		return []framework.RequestOption{framework.JSONPatchType}
	default:
		return []framework.RequestOption{framework.ServerSideApply, framework.Query("fieldManager=corpus")}
	}
}
