package outage

import (
	"errors"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/trigate/trigate/deploy/test/framework"
)

const (
	// shortTimeout is the time that a client gives to a request.
	shortTimeout = "3s"
	// answeredWithin is far below what would end such a request without its own
	// deadline: a lost connection takes 13 s to be noticed, and a request 34 s or more
	// to time out.
	answeredWithin = 8 * time.Second
	// keptFor is more than a gateway serves what it has kept without hearing from the
	// service that it is from.
	keptFor = 10 * time.Second
)

// TestSlow stops each gate's process in turn, as a machine does that is out of
// memory: it neither answers nor closes connections. A request that needs it is
// answered within its own deadline.
func TestSlow(t *testing.T) {
	p := framework.NewParts(t, framework.PartsOptions{})
	p.Start(t, p.Names()...)
	p.AwaitReady(t)
	who := settle(t, p.Cluster)

	for _, test := range []struct {
		gate string
		// ask sends a request that needs the gate.
		ask func(t *testing.T, option framework.RequestOption) *framework.Answer
	}{
		{authz, func(t *testing.T, option framework.RequestOption) *framework.Answer {
			return p.As(t, who.ann).Send(t, http.MethodGet, configMaps, "", option)
		}},
		{authn, func(t *testing.T, option framework.RequestOption) *framework.Answer {
			return p.As(t, who.robot).Send(t, http.MethodGet, configMaps, "", option)
		}},
		{admission, func(t *testing.T, option framework.RequestOption) *framework.Answer {
			return p.As(t, who.ann).Send(t, http.MethodPost, configMaps, configMap("slow", "a"), option, framework.Query("dryRun=All"))
		}},
	} {
		t.Run(test.gate, func(t *testing.T) {
			p.Signal(t, test.gate, syscall.SIGSTOP)
			var answer *framework.Answer
			framework.EventuallyWithin(t, keptFor, "an answer that the gate was asked for", func() error {
				begin := time.Now()
				answer = test.ask(t, framework.Query("timeout="+shortTimeout))
				if took := time.Since(begin); took > answeredWithin {
					t.Errorf("a request with a timeout of %s was answered after %s", shortTimeout, took)
				}
				if answer.Code < http.StatusBadRequest {
					return errors.New("the answer is made of what the gateway has kept, or has been told before")
				}
				return nil
			})
			wantUnavailable(t, answer, test.gate)
			admin := p.As(t, who.admin)
			admin.Send(t, http.MethodGet, configMaps, "").Want(t, http.StatusOK)
			admin.Send(t, http.MethodGet, configMaps+"/slow", "").Want(t, http.StatusNotFound)
			for _, path := range []string{"/livez", "/version"} {
				if body, err := p.Probe(t, path); err != nil {
					t.Errorf("%s: %v\n%s", path, err, body)
				}
			}

			p.Signal(t, test.gate, syscall.SIGCONT)
			wantWhole(t, p.Cluster, who)
			p.AwaitReady(t)
		})
	}
}
