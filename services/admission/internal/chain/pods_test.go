package chain

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestLivePods has a fake of client-go for an API; the end-to-end tests have a real one.
func TestLivePods(t *testing.T) {
	pod := func(namespace, name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}}
	}
	client := fake.NewClientset(pod("shop", "web"), pod("shop", "db"), pod("bank", "web"))
	var failed error
	factory := newLivePods(informers.NewSharedInformerFactory(client, 0), client, func(err error) { failed = err })
	lister := factory.Core().V1().Pods().Lister()

	if got, err := lister.Pods("bank").Get("web"); err != nil || got.Namespace != "bank" {
		t.Errorf("Get() = %v, %v, want the pod of the namespace", got, err)
	}
	if got, err := lister.Pods("shop").List(labels.Everything()); err != nil || len(got) != 2 {
		t.Errorf("List() of a namespace = %d pods, %v, want 2", len(got), err)
	}
	if got, err := lister.List(labels.SelectorFromSet(labels.Set{"app": "web"})); err != nil || len(got) != 2 {
		t.Errorf("List() by a label = %d pods, %v, want 2", len(got), err)
	}
	for _, action := range client.Actions() {
		version := ""
		switch action := action.(type) {
		case clienttesting.GetActionImpl:
			version = action.GetOptions.ResourceVersion
		case clienttesting.ListActionImpl:
			version = action.ListOptions.ResourceVersion
		}
		if version != fromWatchCache {
			t.Errorf("a %s asked for the resource version %q, want %q", action.GetVerb(), version, fromWatchCache)
		}
	}

	// What is not there is an answer.
	_, err := lister.Pods("shop").Get("nothing")
	if want := apierrors.NewNotFound(corev1.Resource("pods"), "nothing"); !apierrors.IsNotFound(err) || err.Error() != want.Error() {
		t.Errorf("Get() of no pod = %v, want %v", err, want)
	}
	if failed != nil {
		t.Errorf("told of the failure %v, want none", failed)
	}
	// What cannot be asked is none.
	outage := errors.New("connection refused")
	client.PrependReactor("*", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, outage })
	for what, look := range map[string]func() error{
		"Get": func() error {
			_, err := lister.Pods("shop").Get("web")
			return err
		},
		"List": func() error {
			_, err := lister.List(labels.Everything())
			return err
		},
	} {
		failed = nil
		if err := look(); !errors.Is(err, outage) || !errors.Is(failed, outage) {
			t.Errorf("%s() in an outage = %v and told of %v, want both to be %v", what, err, failed, outage)
		}
	}
}
