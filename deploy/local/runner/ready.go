package runner

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/deploy/pki"
)

const (
	// readyPoll is how often /readyz is asked.
	readyPoll = 100 * time.Millisecond
	// readyTimeout bounds one answer.
	readyTimeout = 5 * time.Second
	// readyNews is how often it is said what is being waited for.
	readyNews = 10 * time.Second
	// maxReadyBody is far above what /readyz?verbose answers, in bytes.
	maxReadyBody = 64 << 10
)

// waitUntilReady returns true when all gateways are ready, and false when ctx is
// done. All must be so in one round: what was ready a minute ago may have died.
func (r *runner) waitUntilReady(ctx context.Context) bool {
	next := time.Now().Add(readyNews)
	err := wait.PollUntilContextCancel(ctx, readyPoll, false, func(ctx context.Context) (bool, error) {
		for i := 1; i <= r.Gateways; i++ {
			err := r.checkReady(ctx, r.gatewayURL(i)+"/readyz?verbose")
			if err == nil {
				continue
			}
			if time.Now().After(next) && ctx.Err() == nil {
				r.print(fmt.Sprintf("waiting for %s: %s", replica(GatewayProcess, i), err))
				next = time.Now().Add(readyNews)
			}
			return false, nil
		}
		return true, nil
	})
	return err == nil
}

// checkReady tells why a gateway is not ready. It takes a new connection each
// time, with the certificates as they are, so that it tells of nothing old.
func (r *runner) checkReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	roots, err := cert.NewPool(r.pki.Cert(pki.ClusterCA))
	if err != nil {
		return err
	}
	admin, err := tls.LoadX509KeyPair(r.pki.Cert(pki.Admin), r.pki.Key(pki.Admin))
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{admin}},
		DisableKeepAlives: true,
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReadyBody))
	if err != nil {
		return err
	}
	return fmt.Errorf("%s %s", response.Status, failedChecks(string(body)))
}

// failedChecks are the names of the checks that /readyz?verbose says have failed,
// or what it says if it names none.
func failedChecks(body string) string {
	var failed []string
	for line := range strings.Lines(body) {
		if check, ok := strings.CutPrefix(strings.TrimSpace(line), "[-]"); ok {
			name, _, _ := strings.Cut(check, " ")
			failed = append(failed, name)
		}
	}
	if len(failed) == 0 {
		first, _, _ := strings.Cut(strings.TrimSpace(body), "\n")
		return first
	}
	return strings.Join(failed, ", ")
}
