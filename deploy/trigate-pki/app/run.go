package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/pki/secrets"
)

// requestTimeout bounds each request to the cluster that has the Secrets.
const requestTimeout = 30 * time.Second

// opened is where the PKI is.
type opened struct {
	pki.Store
	secrets *secrets.Store // nil for a directory
	client  corev1client.CoreV1Interface
}

func (o *Options) open(ctx context.Context) (*opened, error) {
	if o.Dir != "" {
		return &opened{Store: pki.Directory{}}, nil
	}
	config, err := o.restConfig()
	if err != nil {
		return nil, err
	}
	config.Timeout = requestTimeout
	config.QPS = -1 // a few dozen requests, and the server has limits of its own
	client, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster with the Secrets: %w", err)
	}
	store, err := secrets.Load(ctx, client.Secrets(o.Namespace))
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", o.Namespace, err)
	}
	return &opened{Store: store, secrets: store, client: client}, nil
}

func (o *Options) restConfig() (*rest.Config, error) {
	if o.InCluster {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flagInCluster, err)
		}
		return config, nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flagKubeconfig, err)
	}
	return config, nil
}

func (o *Options) runInit(ctx context.Context, out io.Writer) error {
	store, err := o.open(ctx)
	if err != nil {
		return err
	}
	if store.client != nil && !o.DryRun {
		if err := o.ensureNamespace(ctx, store.client, out); err != nil {
			return err
		}
	}
	return o.ensure(ctx, store, out)
}

// ensureNamespace makes the namespace for the Secrets, which come before all else.
func (o *Options) ensureNamespace(ctx context.Context, client corev1client.CoreV1Interface, out io.Writer) error {
	_, err := client.Namespaces().Get(ctx, o.Namespace, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		// Whoever may write the Secrets need not be allowed to read the namespace.
		if apierrors.IsForbidden(err) {
			return nil
		}
		return err
	}
	_, err = client.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Namespace}}, metav1.CreateOptions{FieldManager: program})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("making the namespace: %w", err)
	}
	return say(out, "made Namespace %s", o.Namespace)
}

// ensure makes and renews what must be, and tells of it.
func (o *Options) ensure(ctx context.Context, store *opened, out io.Writer) error {
	return o.change(ctx, store, out, pki.Ensure)
}

func (o *Options) runRotate(ctx context.Context, out io.Writer) error {
	store, err := o.open(ctx)
	if err != nil {
		return err
	}
	return o.change(ctx, store, out, func(ctx context.Context, config pki.Config) (*pki.Layout, error) {
		return pki.Rotate(ctx, config, pki.Name(o.Authority), pki.Rotation(o.Step))
	})
}

// change has the PKI changed, stores it, and tells of what was written.
func (o *Options) change(ctx context.Context, store *opened, out io.Writer, do func(context.Context, pki.Config) (*pki.Layout, error)) error {
	config := o.config(store)
	if o.DryRun && store.secrets == nil {
		config.Store = &pki.DryRun{Store: store}
	}
	layout, err := do(ctx, config)
	if err != nil {
		return err
	}
	written := layout.Written
	if store.secrets != nil {
		if written, err = o.flush(ctx, layout, store.secrets); err != nil {
			return err
		}
	}
	verb := "wrote"
	if o.DryRun {
		verb = "would write"
	}
	for _, name := range written {
		if err := say(out, "%s %s", verb, name); err != nil {
			return err
		}
	}
	if len(written) == 0 {
		if err := say(out, "nothing had to be written"); err != nil {
			return err
		}
	}
	if o.Output == "" {
		return nil
	}
	if o.DryRun {
		return say(out, "would write %s", o.Output)
	}
	credentials, err := layout.Credentials(store, pki.Admin)
	if err != nil {
		return err
	}
	return credentials.WriteKubeconfig(o.Output, o.server(), string(pki.Admin))
}

// flush writes the Secrets, with the admin's kubeconfig among them, whose server
// stays as it is unless another is asked for.
func (o *Options) flush(ctx context.Context, layout *pki.Layout, store *secrets.Store) ([]string, error) {
	credentials, err := layout.Credentials(store, pki.Admin)
	if err != nil {
		return nil, err
	}
	server := o.server()
	old, err := store.Read(secrets.KubeconfigKey)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if config, err := clientcmd.Load(old); err == nil && o.Server == "" && len(o.GatewayAddresses) == 0 {
		for _, cluster := range config.Clusters {
			server = cluster.Server
		}
	}
	kubeconfig, err := credentials.Kubeconfig(server, string(pki.Admin))
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(old, kubeconfig) {
		if err := store.Write(secrets.KubeconfigKey, kubeconfig); err != nil {
			return nil, err
		}
	}
	names, err := store.Flush(ctx, o.DryRun)
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", o.Namespace, err)
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("Secret %s/%s", o.Namespace, name)
	}
	return names, nil
}

func (o *Options) runRenew(ctx context.Context, out io.Writer) error {
	if o.Watch == 0 {
		return o.renew(ctx, out)
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := o.renew(ctx, out); err != nil && ctx.Err() == nil {
			_ = say(out, "renewing failed, next try in %s: %s", o.Watch, err)
		}
	}, o.Watch)
	return nil
}

func (o *Options) renew(ctx context.Context, out io.Writer) error {
	store, err := o.open(ctx)
	if err != nil {
		return err
	}
	// Whoever looks in the wrong place must not get a whole new PKI there.
	status, err := pki.Check(o.config(store), 0)
	if err != nil {
		return err
	}
	for _, s := range status {
		if s.Authority == "" && s.End.IsZero() {
			return fmt.Errorf("authority %s: %s (init makes a new PKI)", s.Name, s.Problem)
		}
	}
	return o.ensure(ctx, store, out)
}

func (o *Options) runCheck(ctx context.Context, out io.Writer) error {
	store, err := o.open(ctx)
	if err != nil {
		return err
	}
	config := o.config(store)
	config.RenewBefore = 0 // nothing is renewed
	status, err := pki.Check(config, o.Before)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "CERTIFICATE\tAUTHORITY\tEND\tSTATE")
	for _, s := range status {
		authority, end, state := string(s.Authority), "-", "ok"
		if authority == "" {
			authority = "-"
		}
		if !s.End.IsZero() {
			end = s.End.UTC().Format(time.RFC3339)
		}
		if s.Problem != "" {
			state = s.Problem
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.Name, authority, end, state)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if slices.ContainsFunc(status, func(s pki.Status) bool { return s.Problem != "" }) {
		return errChecked
	}
	return nil
}

func (o *Options) runKubeconfig(ctx context.Context, out io.Writer) error {
	if o.Output == "" {
		return fmt.Errorf("--%s: it is empty", flagOutput)
	}
	store, err := o.open(ctx)
	if err != nil {
		return err
	}
	groups := o.Groups
	if o.User == adminUser && len(groups) == 0 {
		groups = []string{adminGroup}
	}
	credentials, err := pki.IssueClient(o.config(store), o.User, groups, o.ClientValidity)
	if err != nil {
		return err
	}
	if o.Output != "-" {
		return credentials.WriteKubeconfig(o.Output, o.server(), o.User)
	}
	data, err := credentials.Kubeconfig(o.server(), o.User)
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	return err
}

func say(out io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintf(out, format+"\n", args...)
	return err
}
