package app

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/trigate/trigate/deploy/local/runner"
)

func TestOptionsToConfig(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	defaults := runner.Config{
		Dir:         filepath.Join(here, ".trigate"),
		ProgramDir:  filepath.Dir(executable),
		EtcdCommand: []string{executable, "etcd"},
		Port:        6443,
		Gateways:    1,
		Replicas:    1,
		Controllers: true,
		ExtraArgs: map[string][]string{
			"admission": nil, "authn": nil, "authz": nil, "controllers": nil, "etcd": nil, "gateway": nil,
		},
		StopTimeout: 20 * time.Second,
	}
	for _, tt := range []struct {
		name   string
		args   []string
		change func(*runner.Config)
	}{
		{"defaults", nil, func(*runner.Config) {}},
		{
			"everything",
			[]string{
				"--dir=/d/../e", "--port=0", "--gateways=2", "--replicas=3", "--controllers=false", "--stop-timeout=1s", "--program-dir=/bin",
				"--gateway-arg=--a=1,2", "--gateway-arg=--b", "--authn-arg=--c", "--authz-arg=--d", "--admission-arg=--e", "--etcd-arg=--f", "--controllers-arg=--g",
			},
			func(c *runner.Config) {
				c.Dir, c.ProgramDir, c.Port, c.Gateways, c.Replicas, c.Controllers, c.StopTimeout = "/e", "/bin", 0, 2, 3, false, time.Second
				c.ExtraArgs = map[string][]string{
					"gateway": {"--a=1,2", "--b"}, "authn": {"--c"}, "authz": {"--d"}, "admission": {"--e"}, "etcd": {"--f"}, "controllers": {"--g"},
				}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			options := NewOptions()
			flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
			for _, set := range options.Flags().FlagSets {
				flags.AddFlagSet(set)
			}
			if err := flags.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			completed, err := options.Complete()
			if err != nil {
				t.Fatal(err)
			}
			if errs := completed.Validate(); len(errs) > 0 {
				t.Errorf("Validate = %v", errs)
			}
			want := defaults
			tt.change(&want)
			got := completed.Config(nil)
			for process, args := range got.ExtraArgs {
				if len(args) == 0 {
					got.ExtraArgs[process] = nil
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Config (-want +got):\n%s", diff)
			}
		})
	}
}
