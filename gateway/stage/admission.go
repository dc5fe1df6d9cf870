package stage

import (
	"context"
	"fmt"

	genericadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/trigate/trigate/gateway/interest"
	admissionclient "github.com/trigate/trigate/services/admission/client"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

// admissionHook has the name of upstream's hook for the plugins' initializers, which
// are in the service, so that /readyz lists the same checks.
const admissionHook = "start-apiserver-admission-initializer"

// admission sets up the one admission chain of all three servers: the client of
// the admission gate, where the plugins and their initializers are. What they ask of
// authz is answered by a policy that has seen all changes which are known here. Calls
// that nobody is interested in are left out, if gates allows it.
func admission(
	config *genericapiserver.Config, remote *admissionclient.Client, reviews *tokenReviews, known func() authzclient.Revision,
	gates GatesConfig, observers writeObservers, client kubernetes.Interface, informers informers.SharedInformerFactory,
) error {
	labels, err := interest.NewNamespaces(informers.Core().V1().Namespaces())
	if err != nil {
		return fmt.Errorf("following the labels of namespaces: %w", err)
	}
	tracker := interest.New(remote, labels)
	observers.add(tracker.Observe, interest.Resources()...)
	observers.addDoubts(tracker.Doubt, interest.Resources()...)
	if err := legacyregistry.Registerer().Register(tracker); err != nil {
		return fmt.Errorf("registering the metrics of admission: %w", err)
	}
	namespaces, err := namespaceLifecycle(client, informers)
	if err != nil {
		return err
	}
	config.AdmissionControl = &noteReviews{reviews: reviews, next: &interestedAdmission{
		next: &freshAdmission{next: remote, known: known}, skip: gates.AdmissionSkip,
		interest: tracker, namespaces: namespaces, namespacesSynced: informers.Core().V1().Namespaces().Informer().HasSynced,
	}}
	if err := config.AddPostStartHook("trigate-admission-interest", func(hook genericapiserver.PostStartHookContext) error {
		go tracker.Run(hook) // ends with the server's context
		return nil
	}); err != nil {
		return err
	}
	return config.AddPostStartHook(admissionHook, func(genericapiserver.PostStartHookContext) error { return nil })
}

// freshAdmission tells the admission gate which changes of the policy are known.
type freshAdmission struct {
	next  mutatingAndValidating
	known func() authzclient.Revision
}

var _ mutatingAndValidating = (*freshAdmission)(nil)

// Handles implements admission.Interface.
func (f *freshAdmission) Handles(operation genericadmission.Operation) bool {
	return f.next.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (f *freshAdmission) Admit(ctx context.Context, a genericadmission.Attributes, o genericadmission.ObjectInterfaces) error {
	return f.next.Admit(admissionclient.WithPolicy(ctx, f.known()), a, o)
}

// Validate implements admission.ValidationInterface.
func (f *freshAdmission) Validate(ctx context.Context, a genericadmission.Attributes, o genericadmission.ObjectInterfaces) error {
	return f.next.Validate(admissionclient.WithPolicy(ctx, f.known()), a, o)
}

// interestedAdmission leaves out the calls that nobody is interested in, but for
// NamespaceLifecycle's part of them: that nothing is created in a namespace which is
// missing or ends. The plugin runs here, after a call too: it remembers which namespaces
// were deleted through this process, which a replica of the service that another call
// went to does not.
type interestedAdmission struct {
	next     mutatingAndValidating
	skip     bool
	interest *interest.Tracker
	// namespaces is upstream's plugin.
	namespaces       genericadmission.MutationInterface
	namespacesSynced func() bool
}

var _ mutatingAndValidating = (*interestedAdmission)(nil)

// Handles implements admission.Interface.
func (i *interestedAdmission) Handles(operation genericadmission.Operation) bool {
	return i.next.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (i *interestedAdmission) Admit(ctx context.Context, a genericadmission.Attributes, o genericadmission.ObjectInterfaces) error {
	synced, aheadCtx := i.namespacesSynced(), i.withAhead(ctx, a, o)
	if !i.nobody(interest.Mutating, i.skip && synced, a, o) {
		if err := i.next.Admit(aheadCtx, a, o); err != nil {
			return err
		}
	}
	if synced && i.interest.NamespaceLifecycle() && i.namespaces.Handles(a.GetOperation()) {
		return i.namespaces.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (i *interestedAdmission) Validate(ctx context.Context, a genericadmission.Attributes, o genericadmission.ObjectInterfaces) error {
	if i.skip {
		if ahead := aheadOf(ctx); ahead != nil && i.interest.Settled(a, o) && ahead.Conclude(ctx, a) {
			i.interest.CountAhead()
			return nil
		}
	}
	if i.nobody(interest.Validating, i.skip, a, o) {
		return nil
	}
	return i.next.Validate(ctx, a, o)
}

// withAhead has Admit say what Validate would, if it can. What was said of the request
// before, as of a patch that is tried again, no longer counts.
func (i *interestedAdmission) withAhead(ctx context.Context, a genericadmission.Attributes, o genericadmission.ObjectInterfaces) context.Context {
	ahead := aheadOf(ctx)
	if ahead == nil {
		return ctx
	}
	if !i.skip || !i.interest.Settled(a, o) {
		ahead.Forget()
		return ctx
	}
	return admissionclient.WithAhead(ctx, ahead)
}

func (i *interestedAdmission) nobody(phase interest.Phase, allowed bool, a genericadmission.Attributes, o genericadmission.ObjectInterfaces) bool {
	if !allowed {
		i.interest.CountCall(phase)
		return false
	}
	return i.interest.Nobody(phase, a, o)
}

// namespaceLifecycle returns upstream's plugin as kube-apiserver makes it.
func namespaceLifecycle(client kubernetes.Interface, informers informers.SharedInformerFactory) (genericadmission.MutationInterface, error) {
	plugins := genericadmission.NewPlugins()
	lifecycle.Register(plugins)
	plugin, err := plugins.InitPlugin(lifecycle.PluginName, nil, namespaceSources{client, informers})
	if err != nil {
		return nil, err
	}
	mutating, ok := plugin.(genericadmission.MutationInterface)
	if !ok {
		return nil, fmt.Errorf("%s is not a mutating plugin", lifecycle.PluginName)
	}
	return mutating, nil
}

// namespaceSources give the plugin what it looks namespaces up with.
type namespaceSources struct {
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
}

var _ genericadmission.PluginInitializer = namespaceSources{}

// Initialize implements admission.PluginInitializer.
func (n namespaceSources) Initialize(plugin genericadmission.Interface) {
	if wants, ok := plugin.(initializer.WantsExternalKubeClientSet); ok {
		wants.SetExternalKubeClientSet(n.client)
	}
	if wants, ok := plugin.(initializer.WantsExternalKubeInformerFactory); ok {
		wants.SetExternalKubeInformerFactory(n.informers)
	}
}
