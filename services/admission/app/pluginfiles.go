package app

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"sigs.k8s.io/yaml"
)

// checkPluginFiles reports a file of its own that an enabled plugin is to be
// configured from and that cannot be read. Upstream would end the process for
// it with a stack trace. Whatever else is wrong with the configuration, upstream
// says well.
func checkPluginFiles(o *kubeoptions.AdmissionOptions) error {
	path := o.GenericAdmission.ConfigFile
	if path == "" {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--%s: %w", flagConfigFile, err)
	}
	var configuration apiserverv1.AdmissionConfiguration
	if err := yaml.Unmarshal(data, &configuration); err != nil {
		return nil
	}
	for _, plugin := range configuration.Plugins {
		if plugin.Path == "" || plugin.Configuration != nil || !enabled(o, plugin.Name) {
			continue
		}
		file := plugin.Path
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(path), file)
		}
		if _, err := os.ReadFile(file); err != nil {
			return fmt.Errorf("--%s: %s: plugin %s: %w", flagConfigFile, path, plugin.Name, err)
		}
	}
	return nil
}

// enabled returns whether the flags turn a plugin on.
func enabled(o *kubeoptions.AdmissionOptions, plugin string) bool {
	generic := o.GenericAdmission
	switch {
	case o.PluginNames != nil:
		return slices.Contains(o.PluginNames, plugin)
	case slices.Contains(generic.EnablePlugins, plugin):
		return true
	}
	return !generic.DefaultOffPlugins.Has(plugin) && !slices.Contains(generic.DisablePlugins, plugin)
}
