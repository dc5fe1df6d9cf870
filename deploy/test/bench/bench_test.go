// Package bench measures what Trigate costs beside stock kube-apiserver: the CPU time
// of all processes of the control plane, etcd included, and the time that a client
// waits. Both are started by the same run, and take turns in small batches, so that
// whatever else the machine does weighs on both. Only ratios are to be compared; they
// are told as Trigate's by stock's.
package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

const (
	// workers is how many requests are in flight at once.
	workers = 8
	// batch is how many requests one control plane gets before it is the other's turn.
	batch = 256
)

// side is one of the control planes that are compared, and what it has cost.
type side struct {
	cluster *framework.Cluster
	client  kubernetes.Interface
	names   atomic.Int64 // of objects that are made

	cpu       time.Duration
	latencies []time.Duration
}

// operation prepares a control plane for a benchmark and returns one request of it.
// Each worker has a number of its own.
type operation func(b *testing.B, s *side) func(ctx context.Context, worker int) error

// BenchmarkWrites reports for each kind of write the CPU time and latency of both
// control planes and their ratios.
func BenchmarkWrites(b *testing.B) {
	// Audit would write whole objects, which no cluster does.
	policy := filepath.Join(b.TempDir(), "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None}]\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	flag := "--audit-policy-file=" + policy
	sides := []*side{
		{cluster: framework.StartStock(b, framework.StockOptions{Args: []string{flag}})},
		{cluster: framework.StartTrigate(b, framework.TrigateOptions{Args: []string{"--gateway-arg=" + flag}})},
	}
	for _, s := range sides {
		s.client = s.cluster.Client(b)
	}
	for _, bc := range []struct {
		name string
		operation
	}{
		{"CreateConfigMap", createConfigMap},
		{"CreatePod", createPod},
		{"UpdateLease", updateLease},
		{"PatchDeployment", patchDeployment},
		{"PatchWarnedDeployment", patchWarnedDeployment},
	} {
		b.Run(bc.name, func(b *testing.B) { compare(b, sides, bc.operation) })
	}
}

// compare does b.N requests on each side and reports what they cost.
func compare(b *testing.B, sides []*side, prepare operation) {
	requests := make([]func(context.Context, int) error, len(sides))
	for i, s := range sides {
		s.cpu, s.latencies = 0, nil
		requests[i] = prepare(b, s)
		s.run(b, requests[i], workers) // connections, caches
		s.cpu, s.latencies = 0, nil
	}
	b.ResetTimer()
	for done := 0; done < b.N; done += batch {
		for i, s := range sides {
			s.run(b, requests[i], min(batch, b.N-done))
		}
	}
	b.StopTimer()
	stock, trigate := sides[0], sides[1]
	for _, s := range sides {
		b.ReportMetric(float64(s.cpu.Microseconds())/float64(b.N), s.cluster.Name+"-cpu-µs/op")
		b.ReportMetric(float64(s.mean().Microseconds()), s.cluster.Name+"-mean-µs")
		b.ReportMetric(float64(s.quantile(0.5).Microseconds()), s.cluster.Name+"-p50-µs")
		b.ReportMetric(float64(s.quantile(0.99).Microseconds()), s.cluster.Name+"-p99-µs")
	}
	ratio := func(trigate, stock time.Duration, unit string) {
		if stock > 0 {
			b.ReportMetric(float64(trigate)/float64(stock), unit)
		}
	}
	ratio(trigate.cpu, stock.cpu, "cpu-ratio")
	ratio(trigate.mean(), stock.mean(), "mean-ratio")
	ratio(trigate.quantile(0.5), stock.quantile(0.5), "p50-ratio")
	ratio(trigate.quantile(0.99), stock.quantile(0.99), "p99-ratio")
}

// run sends count requests and adds up what they cost.
func (s *side) run(b *testing.B, request func(context.Context, int) error, count int) {
	b.Helper()
	took := make([][]time.Duration, workers)
	errs := make([]error, workers)
	var next atomic.Int64
	var all sync.WaitGroup
	before := s.cluster.CPU(b)
	for worker := range workers {
		all.Go(func() {
			for next.Add(1) <= int64(count) {
				start := time.Now()
				if errs[worker] = request(b.Context(), worker); errs[worker] != nil {
					return
				}
				took[worker] = append(took[worker], time.Since(start))
			}
		})
	}
	all.Wait()
	s.cpu += s.cluster.CPU(b) - before
	for worker := range workers {
		if errs[worker] != nil {
			b.Fatalf("%s: %v", s.cluster.Name, errs[worker])
		}
		s.latencies = append(s.latencies, took[worker]...)
	}
}

func (s *side) mean() time.Duration {
	var sum time.Duration
	for _, latency := range s.latencies {
		sum += latency
	}
	return sum / time.Duration(max(1, len(s.latencies)))
}

// quantile returns the latency that the share q of all requests did not exceed.
func (s *side) quantile(q float64) time.Duration {
	if len(s.latencies) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.latencies))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// name is one that no object of this side has had.
func (s *side) name() string { return fmt.Sprintf("object-%d", s.names.Add(1)) }

func createConfigMap(b *testing.B, s *side) func(context.Context, int) error {
	configMaps := s.client.CoreV1().ConfigMaps(s.cluster.Namespace(b))
	return func(ctx context.Context, _ int) error {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: s.name()}, Data: map[string]string{"key": "value"}}
		_, err := configMaps.Create(ctx, object, metav1.CreateOptions{})
		return err
	}
}

// createPod has plugins act: each Pod gets tolerations, a priority, and the token of
// its service account.
func createPod(b *testing.B, s *side) func(context.Context, int) error {
	pods := s.client.CoreV1().Pods(s.cluster.Namespace(b))
	return func(ctx context.Context, _ int) error {
		object := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: s.name(), Labels: map[string]string{"app": "bench"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "main", Image: "example.com/main:1", Env: []corev1.EnvVar{{Name: "A", Value: "a"}, {Name: "B", Value: "b"}}},
				{Name: "sidecar", Image: "example.com/sidecar:1"},
			}},
		}
		_, err := pods.Create(ctx, object, metav1.CreateOptions{})
		return err
	}
}

func updateLease(b *testing.B, s *side) func(context.Context, int) error {
	leases := s.client.CoordinationV1().Leases(s.cluster.Namespace(b))
	mine := make([]*coordinationv1.Lease, workers)
	for worker := range workers {
		object := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("lease-%d", worker)},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("bench"), LeaseDurationSeconds: ptr.To[int32](40)},
		}
		var err error
		if mine[worker], err = leases.Create(b.Context(), object, metav1.CreateOptions{}); err != nil {
			b.Fatalf("%s: %v", s.cluster.Name, err)
		}
	}
	return func(ctx context.Context, worker int) error {
		mine[worker].Spec.RenewTime = ptr.To(metav1.NowMicro())
		updated, err := leases.Update(ctx, mine[worker], metav1.UpdateOptions{})
		if err == nil {
			mine[worker] = updated
		}
		return err
	}
}

// patchDeployment has no plugin act: nobody asks for warnings.
func patchDeployment(b *testing.B, s *side) func(context.Context, int) error {
	return patchDeploymentIn(b, s, s.cluster.Namespace(b))
}

// patchWarnedDeployment has PodSecurity look at each Deployment.
func patchWarnedDeployment(b *testing.B, s *side) func(context.Context, int) error {
	namespace := s.cluster.Namespace(b)
	label := []byte(`{"metadata": {"labels": {"pod-security.kubernetes.io/warn": "baseline"}}}`)
	if _, err := s.client.CoreV1().Namespaces().Patch(b.Context(), namespace, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		b.Fatalf("%s: %v", s.cluster.Name, err)
	}
	return patchDeploymentIn(b, s, namespace)
}

func patchDeploymentIn(b *testing.B, s *side, namespace string) func(context.Context, int) error {
	deployments := s.client.AppsV1().Deployments(namespace)
	labels := map[string]string{"app": "bench"}
	for worker := range workers {
		object := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("deployment-%d", worker)},
			Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](0),
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1"}}},
				},
			},
		}
		if _, err := deployments.Create(b.Context(), object, metav1.CreateOptions{}); err != nil {
			b.Fatalf("%s: %v", s.cluster.Name, err)
		}
	}
	return func(ctx context.Context, worker int) error {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"bench":%q}}}`, s.name())
		_, err := deployments.Patch(ctx, fmt.Sprintf("deployment-%d", worker), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
}
