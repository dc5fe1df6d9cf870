package admission

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestQuotasAreKept(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		admin.Send(t, "POST", core(ns, "resourcequotas"),
			"{apiVersion: v1, kind: ResourceQuota, metadata: {name: quota}, spec: {hard: {count/podtemplates: 0, count/secrets: 2, pods: 1, requests.cpu: 500m}}}").Want(t, 201)
		secret := func(name string) string { return "{apiVersion: v1, kind: Secret, metadata: {name: " + name + "}}" }
		awaitQuota(t, c, ns)

		secrets := core(ns, "secrets")
		admin.Send(t, "POST", secrets, secret("s1")).Want(t, 201)
		admin.Send(t, "POST", secrets+"?dryRun=All", secret("s2")).Want(t, 201)
		admin.Send(t, "POST", secrets, secret("s2")).Want(t, 201)
		const exceeded = `secrets "s3" is forbidden: exceeded quota: quota, requested: count/secrets=1, used: count/secrets=2, limited: count/secrets=2`
		admin.Send(t, "POST", secrets, secret("s3")).WantMessage(t, 403, exceeded)
		admin.Send(t, "POST", secrets+"?dryRun=All", secret("s3")).WantMessage(t, 403, exceeded)
		admin.Send(t, "PATCH", secrets+"/s3?fieldManager=test", secret("s3"), framework.ServerSideApply).WantMessage(t, 403, exceeded)
		admin.Send(t, "PATCH", secrets+"/s1", `{"stringData":{"a":"b"}}`, framework.MergePatch).Want(t, 200)

		pods := core(ns, "pods")
		admin.Send(t, "POST", pods, pod).WantMessage(t, 403,
			`pods "p1" is forbidden: failed quota: quota: must specify requests.cpu for: main`)
		requesting := func(name, cpu string) string {
			return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [{name: main, image: i, resources: {requests: {cpu: %s}}}]}}", name, cpu)
		}
		admin.Send(t, "POST", pods, requesting("p1", "600m")).WantMessage(t, 403,
			`pods "p1" is forbidden: exceeded quota: quota, requested: requests.cpu=600m, used: requests.cpu=0, limited: requests.cpu=500m`)
		admin.Send(t, "POST", pods, requesting("p1", "400m")).Want(t, 201)
		admin.Send(t, "POST", pods, requesting("p2", "200m")).WantMessage(t, 403,
			`pods "p2" is forbidden: exceeded quota: quota, requested: pods=1,requests.cpu=200m, used: pods=1,requests.cpu=400m, limited: pods=1,requests.cpu=500m`)

		// The controller counts down after a deletion.
		admin.Send(t, "DELETE", secrets+"/s1", "").Want(t, 200)
		c.Admin(t).Await(t, "POST", secrets+"?dryRun=All", secret("s4"), 201)
	})
}

func TestQuotasHoldAgainstManyAtOnce(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		ns := c.Namespace(t)
		admin := c.Admin(t)
		const limit, tries = 3, 20
		admin.Send(t, "POST", core(ns, "resourcequotas"), fmt.Sprintf(
			"{apiVersion: v1, kind: ResourceQuota, metadata: {name: quota}, spec: {hard: {count/podtemplates: 0, count/secrets: %d}}}", limit)).Want(t, 201)
		awaitQuota(t, c, ns)

		codes := make([]int, tries)
		errs := make([]error, tries)
		var all sync.WaitGroup
		for i := range tries {
			all.Go(func() {
				answer, err := admin.TrySend("POST", core(ns, "secrets"), "{apiVersion: v1, kind: Secret, metadata: {generateName: s-}}")
				if errs[i] = err; err == nil {
					codes[i] = answer.Code
				}
			})
		}
		all.Wait()
		created := 0
		for i := range tries {
			switch {
			case errs[i] != nil:
				t.Error(errs[i])
			case codes[i] == 201:
				created++
			case codes[i] != 403:
				t.Errorf("got code %d, want 201 or 403", codes[i])
			}
		}
		if created != limit {
			t.Errorf("%d of %d were created, want %d", created, tries, limit)
		}
	})
}

// awaitQuota waits until a quota that allows no PodTemplates is in force, and with it
// all that it says.
func awaitQuota(t *testing.T, c *framework.Cluster, ns string) {
	t.Helper()
	const template = "{apiVersion: v1, kind: PodTemplate, metadata: {name: none}, template: {spec: {containers: [{name: main, image: i}]}}}"
	admin := c.Admin(t)
	framework.Eventually(t, "the quota", func() error {
		answer, err := admin.TrySend("POST", core(ns, "podtemplates")+"?dryRun=All", template)
		if err == nil && !strings.Contains(string(answer.Body), "exceeded quota") {
			err = fmt.Errorf("is not in force: %s", answer.Body)
		}
		return err
	})
}
