package chain

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// withoutPods is an informer factory that does not watch pods for who only wants to list
// them. Upstream prepares quota's plugin, which would, also where no plugin is to run;
// with it each pod would come back to the gateway with every change, and stay in memory.
type withoutPods struct {
	informers.SharedInformerFactory
}

// Core returns the informers of the core group.
func (f withoutPods) Core() core.Interface { return coreWithoutPods{f.SharedInformerFactory.Core()} }

type coreWithoutPods struct{ core.Interface }

// V1 returns the informers of v1.
func (c coreWithoutPods) V1() coreinformers.Interface { return v1WithoutPods{c.Interface.V1()} }

type v1WithoutPods struct{ coreinformers.Interface }

// Pods returns the informer of pods, with a lister that does not use it.
func (v v1WithoutPods) Pods() coreinformers.TypedPodInformer {
	return noPodInformer{v.Interface.Pods()}
}

type noPodInformer struct{ coreinformers.TypedPodInformer }

// Lister returns a lister that only fails.
func (noPodInformer) Lister() corelisters.PodLister { return noPods{} }

// errNoPods is for a plugin that nobody expects.
var errNoPods = errors.New("the gateway runs no plugin that reads pods, and does not watch them")

type noPods struct{}

var (
	_ corelisters.PodLister          = noPods{}
	_ corelisters.PodNamespaceLister = noPods{}
)

// List fails.
func (noPods) List(labels.Selector) ([]*corev1.Pod, error) { return nil, errNoPods }

// Pods returns the lister.
func (noPods) Pods(string) corelisters.PodNamespaceLister { return noPods{} }

// Get fails.
func (noPods) Get(string) (*corev1.Pod, error) { return nil, errNoPods }
