package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

// fileCheckInterval is how often the TLS files are looked at without a
// handshake, only so that a bad one is logged in time.
const fileCheckInterval = time.Minute

// httpTimeout bounds a request for metrics or health.
const httpTimeout = 10 * time.Second

// tracingTimeout bounds how long the end of the process waits for the last spans to
// be sent.
const tracingTimeout = 2 * time.Second

// Task is something that runs as long as the server does: informers, say.
type Task struct {
	// Name is the task's name in errors.
	Name string
	// Run returns soon after ctx ends, which is after the server's last call
	// has been answered. An error ends the server; returning nil early is fine.
	Run func(ctx context.Context) error
}

// Run serves until ctx ends or something fails, and returns the first error.
// Ending means: NOT_SERVING, ShutdownDelay, no new calls and time for those
// under way, then the tasks. It can be called once.
func (s *Server) Run(ctx context.Context, tasks ...Task) error {
	defer s.shutDownTracing(ctx)
	defer s.endStream()
	defer s.grpc.Stop() // its workers are there from the start
	if err := s.CheckPolicy(); err != nil {
		return errors.Join(err, closeAll(s.cfg.Listener, s.cfg.MetricsListener))
	}
	listener, metricsListener, err := s.listen(ctx)
	if err != nil {
		return err
	}
	s.health.announce(serviceNames(s.grpc.GetServiceInfo()))

	// What runs does not end with ctx: the tasks outlive the last call.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, failed := errgroup.WithContext(running)
	group.Go(func() error {
		// It is stopped already if ctx had ended before Run began.
		if err := s.grpc.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serving gRPC on %s: %w", listener.Addr(), err)
		}
		return nil
	})
	if metricsListener != nil {
		group.Go(func() error { return s.serveHTTP(running, metricsListener) })
	}
	group.Go(func() error { return s.checkFiles(running) })
	for _, task := range tasks {
		group.Go(func() error {
			if err := task.Run(running); err != nil && running.Err() == nil {
				return fmt.Errorf("%s: %w", task.Name, err)
			}
			return nil
		})
	}
	klog.FromContext(ctx).Info("Serving gRPC", "service", s.cfg.Name, "address", listener.Addr().String())

	select {
	case <-ctx.Done():
	case <-failed.Done():
	}
	s.shutDown(ctx, failed)
	stop()
	return group.Wait()
}

// shutDown ends the gRPC server. A failure cuts the delay short: there may be
// nothing left that could answer.
func (s *Server) shutDown(ctx context.Context, failed context.Context) {
	klog.FromContext(ctx).Info("Shutting down gRPC", "service", s.cfg.Name, "delay", s.cfg.ShutdownDelay)
	s.health.drain()
	delay := time.NewTimer(s.cfg.ShutdownDelay)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-failed.Done():
	}
	s.endStream()
	bound := time.AfterFunc(s.cfg.ShutdownTimeout, s.grpc.Stop)
	defer bound.Stop()
	s.grpc.GracefulStop()
}

// shutDownTracing sends the last spans. It is no failure if nobody takes them.
func (s *Server) shutDownTracing(ctx context.Context) {
	if s.cfg.TracerProvider == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracingTimeout)
	defer cancel()
	if err := s.cfg.TracerProvider.Shutdown(ctx); err != nil {
		klog.FromContext(ctx).Info("The last spans could not be sent", "reason", err.Error())
	}
}

// listen opens what was not handed in.
func (s *Server) listen(ctx context.Context) (net.Listener, net.Listener, error) {
	listener, metricsListener := s.cfg.Listener, s.cfg.MetricsListener
	var listenConfig net.ListenConfig
	var err error
	if listener == nil {
		if listener, err = listenConfig.Listen(ctx, "tcp", s.cfg.ListenAddress); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("--%s: %w", flagListenAddress, err), closeAll(metricsListener))
		}
	}
	if metricsListener == nil && s.cfg.MetricsListenAddress != "" {
		if metricsListener, err = listenConfig.Listen(ctx, "tcp", s.cfg.MetricsListenAddress); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("--%s: %w", flagMetricsListenAddress, err), closeAll(listener))
		}
	}
	return listener, metricsListener, nil
}

func closeAll(listeners ...net.Listener) error {
	var errs []error
	for _, listener := range listeners {
		if listener != nil {
			errs = append(errs, listener.Close())
		}
	}
	return errors.Join(errs...)
}

// serveHTTP serves metrics and health until ctx ends.
func (s *Server) serveHTTP(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           s.httpHandler(),
		ReadHeaderTimeout: httpTimeout,
		WriteTimeout:      httpTimeout,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving HTTP on %s: %w", listener.Addr(), err)
	}
	return nil
}

func (s *Server) httpHandler() http.Handler {
	mux := http.NewServeMux()
	if s.cfg.Gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{}))
	}
	alive := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /healthz", alive) // the older name of the same, as kube-apiserver has it
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		ready, report := s.health.report()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(report))
	})
	return mux
}

// checkFiles reads the TLS files now and then until ctx ends. Package mtls logs
// what is wrong with them.
func (s *Server) checkFiles(ctx context.Context) error {
	ticker := time.NewTicker(fileCheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			for _, f := range s.files {
				_ = f.file.Check()
			}
		}
	}
}
