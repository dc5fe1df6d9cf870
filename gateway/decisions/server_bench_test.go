package decisions

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/authztest"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

// askerEnv has the task of a process that asks.
const askerEnv = "TRIGATE_BENCH_ASKER"

// task is what a process that asks does: as many questions as each line of its input
// says, in one of the forms of a batch, about which it says a line when they are answered.
type task struct {
	Peer     authzclient.Config
	Form     string
	Bindings int
}

// TestMain asks if this is a process that does.
func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(askerEnv); ok {
		if err := runTask(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

func runTask(text string) error {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	conn, err := authztest.Dial(t.Peer)
	if err != nil {
		return err
	}
	_, question := clusterOf(t.Bindings)
	form := slices.IndexFunc(forms, func(f form) bool { return f.name == t.Form })
	ask := forms[form].ask(authzv1.NewAuthorizationServiceClient(conn), question)
	for {
		var questions int
		if _, err := fmt.Scanln(&questions); err != nil {
			return conn.Close() // The input has ended.
		}
		var left atomic.Int64
		left.Store(int64(questions))
		var group errgroup.Group
		for range concurrency { // A service that sleeps between two calls is busy with falling asleep.
			group.Go(func() error {
				for left.Add(-batch) > -batch {
					if err := ask(); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		fmt.Println("answered")
	}
}

// BenchmarkServer is BenchmarkDecision for batches with the caller in another process: CPU
// and allocations are those of the service alone.
func BenchmarkServer(b *testing.B) {
	for _, bindings := range []int{100, 1_000, 10_000} {
		objects, _ := clusterOf(bindings)
		service := authztest.Start(b, objects...)
		service.Client(b) // waits until it is SERVING
		for _, form := range forms {
			ask := startAsker(b, task{Peer: service.Peer(b), Form: form.name, Bindings: bindings})
			b.Run(fmt.Sprintf("bindings=%d/%s of %d", bindings, form.name, batch), func(b *testing.B) {
				ask(b, 1) // connects
				b.ReportAllocs()
				b.ResetTimer()
				before := cpu(b)
				ask(b, b.N)
				b.StopTimer()
				b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// startAsker starts a process that asks so many questions when it is called.
func startAsker(b *testing.B, t task) func(b *testing.B, questions int) {
	b.Helper()
	text, err := json.Marshal(t)
	if err != nil {
		b.Fatal(err)
	}
	asker := exec.CommandContext(context.WithoutCancel(b.Context()), os.Args[0])
	asker.Env, asker.Stderr = append(os.Environ(), askerEnv+"="+string(text)), os.Stderr
	input, err := asker.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	output, err := asker.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := asker.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := input.Close(); err != nil {
			b.Error(err)
		}
		if err := asker.Wait(); err != nil {
			b.Error(err)
		}
	})
	lines := bufio.NewReader(output)
	return func(b *testing.B, questions int) {
		b.Helper()
		if _, err := fmt.Fprintln(input, questions); err != nil {
			b.Fatal(err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			b.Fatal(err)
		}
	}
}
