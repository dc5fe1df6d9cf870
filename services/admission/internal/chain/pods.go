package chain

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

const (
	// podTimeout bounds a look-up of pods.
	podTimeout = 5 * time.Second
	// fromWatchCache asks an API server for what its watch cache has, which is what an
	// informer would have been told by it.
	fromWatchCache = "0"
)

// livePods is an informer factory whose lister of pods asks the API. Plugins need a pod
// when a node deletes or evicts it or wants a token for it, and those of a namespace when
// its pod security level changes; for that, no replica has to be told of every change of
// every pod, and keep all of them.
type livePods struct {
	informers.SharedInformerFactory
	lister podLister
}

var _ informers.SharedInformerFactory = livePods{}

// newLivePods returns the factory. A look-up that neither finds an object nor finds it
// missing is told to failed.
func newLivePods(factory informers.SharedInformerFactory, client kubernetes.Interface, failed func(error)) livePods {
	return livePods{SharedInformerFactory: factory, lister: podLister{client: client, failed: failed}}
}

// Core returns the informers of the core group.
func (f livePods) Core() core.Interface {
	return livePodsCore{Interface: f.SharedInformerFactory.Core(), lister: f.lister}
}

type livePodsCore struct {
	core.Interface
	lister podLister
}

// V1 returns the informers of v1.
func (c livePodsCore) V1() coreinformers.Interface {
	return livePodsV1{Interface: c.Interface.V1(), lister: c.lister}
}

type livePodsV1 struct {
	coreinformers.Interface
	lister podLister
}

// Pods returns the informer of pods, with a lister that does not use it.
func (v livePodsV1) Pods() coreinformers.TypedPodInformer {
	return livePodInformer{TypedPodInformer: v.Interface.Pods(), lister: v.lister}
}

type livePodInformer struct {
	coreinformers.TypedPodInformer
	lister podLister
}

// Lister returns the lister.
func (i livePodInformer) Lister() corelisters.PodLister { return i.lister }

// podLister asks the API for pods.
type podLister struct {
	client    kubernetes.Interface
	namespace string
	failed    func(error)
}

var (
	_ corelisters.PodLister          = podLister{}
	_ corelisters.PodNamespaceLister = podLister{}
)

// List returns the pods that a selector matches.
func (l podLister) List(selector labels.Selector) ([]*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(context.Background(), podTimeout)
	defer cancel()
	list, err := l.client.CoreV1().Pods(l.namespace).List(ctx, metav1.ListOptions{
		ResourceVersion: fromWatchCache, LabelSelector: selector.String(),
	})
	if err != nil {
		l.failed(err)
		return nil, err
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

// Pods returns the lister of a namespace.
func (l podLister) Pods(namespace string) corelisters.PodNamespaceLister {
	l.namespace = namespace
	return l
}

// Get returns a pod, or a NotFound.
func (l podLister) Get(name string) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(context.Background(), podTimeout)
	defer cancel()
	pod, err := l.client.CoreV1().Pods(l.namespace).Get(ctx, name, metav1.GetOptions{ResourceVersion: fromWatchCache})
	switch {
	case apierrors.IsNotFound(err):
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name) // as informers say it
	case err != nil:
		l.failed(err)
		return nil, err
	}
	return pod, nil
}
