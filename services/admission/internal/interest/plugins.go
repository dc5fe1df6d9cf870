package interest

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	webhookconfig "k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/component-base/featuregate"
	podsecurityload "k8s.io/pod-security-admission/admission/api/load"
	podsecurityapi "k8s.io/pod-security-admission/api"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
)

// Plugin is one plugin of the chain.
type Plugin struct {
	// Name is its name in upstream's list.
	Name string
	// Handler is the plugin itself.
	Handler admission.Interface
}

// Config is what New needs.
type Config struct {
	// Plugins are those of the chain.
	Plugins []Plugin
	// ConfigFile is what they are configured from. Empty: nothing.
	ConfigFile string
	// Features are the feature gates that the chain was made with.
	Features featuregate.FeatureGate
}

// static is what the chain is interested in as long as it runs.
type static struct {
	mutating, validating []*admissionv1.InterestRule
	lifecycle            bool
	// reads are the resources that some plugin acts by.
	reads [resourceCount]bool
	// quotaEverywhere is whether quota is asked for in namespaces that have none, too.
	quotaEverywhere bool
}

// newStatic reads the table for the plugins, and what their configuration says that
// makes a difference.
func newStatic(cfg Config) (*static, error) {
	configuration, err := readConfiguration(cfg.Plugins, cfg.ConfigFile)
	if err != nil {
		return nil, err
	}
	s := &static{}
	for _, plugin := range cfg.Plugins {
		if err := s.add(plugin, configuration); err != nil {
			return nil, fmt.Errorf("plugin %s: %w", plugin.Name, err)
		}
	}
	// Upstream's plugin does nothing then, and the API may not be there.
	s.reads[MutatingPolicies] = s.reads[MutatingPolicies] && cfg.Features.Enabled(features.MutatingAdmissionPolicy)
	return s, nil
}

func (s *static) add(plugin Plugin, configuration admission.ConfigProvider) error {
	operations := handled(plugin.Handler)
	rows, known := table[plugin.Name]
	if plugin.Name == podSecurityPlugin {
		byDefault, err := podSecurityByDefault(configuration)
		if err != nil {
			return err
		}
		if !byDefault {
			rows = withoutLabels(rows)
		}
	}
	for _, r := range rows {
		s.put(plugin, r.rule(plugin.Name, operations))
	}
	if !known {
		s.put(plugin, everything(plugin.Name, "a plugin that is not known"))
	}
	switch plugin.Name {
	case namespaceLifecycle:
		s.lifecycle = true
	case mutatingWebhook:
		s.reads[MutatingWebhooks] = true
		return s.addWebhooks(plugin, configuration)
	case validatingWebhook:
		s.reads[ValidatingWebhooks] = true
		return s.addWebhooks(plugin, configuration)
	case mutatingPolicy:
		s.reads[MutatingPolicies] = true
		s.addPolicies(plugin)
	case validatingPolicy:
		s.reads[ValidatingPolicies] = true
		s.addPolicies(plugin)
	case resourceQuota:
		s.reads[Quotas] = true
		return s.addQuota(plugin, configuration)
	}
	return nil
}

// put adds a rule where the plugin acts.
func (s *static) put(plugin Plugin, rule *admissionv1.InterestRule) {
	if len(rule.GetOperations()) == 0 && rule.GetSource() == "" {
		return // It handles nothing.
	}
	if _, ok := plugin.Handler.(admission.MutationInterface); ok {
		mutating := proto.CloneOf(rule)
		mutating.Settled = false
		s.mutating = append(s.mutating, mutating)
	}
	if _, ok := plugin.Handler.(admission.ValidationInterface); ok {
		s.validating = append(s.validating, rule)
	}
}

// fromFiles is why a plugin whose webhooks or policies are in files, which may change at
// any time, is interested in everything.
const fromFiles = "manifests in files"

func (s *static) addWebhooks(plugin Plugin, configuration admission.ConfigProvider) error {
	reader, err := configuration.ConfigFor(plugin.Name)
	if err != nil {
		return err
	}
	loaded, err := webhookconfig.LoadConfig(reader)
	if err != nil {
		return err
	}
	if loaded.StaticManifestsDir != "" {
		s.put(plugin, everything(plugin.Name, fromFiles))
	}
	return nil
}

func (s *static) addPolicies(plugin Plugin) {
	policies, ok := plugin.Handler.(interface{ GetStaticManifestsDir() string })
	if !ok || policies.GetStaticManifestsDir() != "" {
		s.put(plugin, everything(plugin.Name, fromFiles))
	}
}

// podSecurityByDefault returns whether the plugin leaves what makes Pods alone in
// namespaces that have none of its labels: its default levels do not warn or annotate, and
// it has no exemptions, which it annotates too.
func podSecurityByDefault(configuration admission.ConfigProvider) (bool, error) {
	reader, err := configuration.ConfigFor(podSecurityPlugin)
	if err != nil {
		return false, err
	}
	loaded, err := podsecurityload.LoadFromReader(reader)
	if err != nil {
		return false, err
	}
	const privileged = string(podsecurityapi.LevelPrivileged)
	exempt := len(loaded.Exemptions.Usernames) + len(loaded.Exemptions.Namespaces) + len(loaded.Exemptions.RuntimeClasses)
	return loaded.Defaults.Warn == privileged && loaded.Defaults.Audit == privileged && exempt == 0, nil
}

func withoutLabels(rows []row) []row {
	rows = slices.Clone(rows)
	for i := range rows {
		rows[i].labelPrefix = ""
	}
	return rows
}

func (s *static) addQuota(plugin Plugin, configuration admission.ConfigProvider) error {
	reader, err := configuration.ConfigFor(plugin.Name)
	if err != nil {
		return err
	}
	loaded, err := resourcequota.LoadConfiguration(reader)
	if err != nil {
		return err
	}
	s.quotaEverywhere = len(loaded.LimitedResources) > 0
	return nil
}

// handled returns the operations that a plugin says it handles.
func handled(plugin admission.Interface) []admissionv1.Operation {
	var operations []admissionv1.Operation
	for _, operation := range []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect} {
		if plugin.Handles(operation) {
			operations = append(operations, convert.EncodeOperation(operation))
		}
	}
	return operations
}

// readConfiguration reads the plugins' configuration as upstream does, whose own
// reading of it is out of reach.
func readConfiguration(plugins []Plugin, file string) (admission.ConfigProvider, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiserver.AddToScheme, v1alpha1.AddToScheme, apiserverv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	names := make([]string, 0, len(plugins))
	for _, plugin := range plugins {
		names = append(names, plugin.Name)
	}
	return admission.ReadAdmissionConfiguration(names, file, scheme)
}
