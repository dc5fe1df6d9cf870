package app

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
)

// userFlags name the user that is asked about. They take the place of kubectl's flags
// for impersonation: who asks remains who the kubeconfig says.
type userFlags struct {
	name, uid string
	groups    []string
}

// userHelp says what the flags do.
const userHelp = `--as, --as-group and --as-uid name the user that is asked about; nobody is impersonated, and it is
	the caller's right to ask that counts. As impersonation does, a service account
	(system:serviceaccount:NAMESPACE:NAME) is given its groups if no --as-group names others, and every
	user but system:anonymous is in system:authenticated. Without --as it is the caller.`

// addFlags adds the flags.
func (f *userFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "as", "", "The user that is asked about, instead of the caller. May be a service account, as system:serviceaccount:NAMESPACE:NAME.")
	flags.StringArrayVar(&f.groups, "as-group", nil, "A group of the user that is asked about; may be given several times.")
	flags.StringVar(&f.uid, "as-uid", "", "The UID of the user that is asked about.")
}

// user is who is asked about. Without --as it asks the server who the caller is.
func (f *userFlags) user(ctx context.Context, getter genericclioptions.RESTClientGetter) (*authnv1.UserInfo, error) {
	if f.name == "" {
		if len(f.groups) > 0 || f.uid != "" {
			return nil, errors.New("--as-group and --as-uid need --as: a user has a name")
		}
		return caller(ctx, getter)
	}
	groups := slices.Clone(f.groups)
	if namespace, _, err := serviceaccount.SplitUsername(f.name); err == nil && len(groups) == 0 {
		groups = serviceaccount.MakeGroupNames(namespace)
	}
	everyone := user.AllAuthenticated
	if f.name == user.Anonymous {
		everyone = user.AllUnauthenticated
	}
	if !slices.Contains(groups, everyone) {
		groups = append(groups, everyone)
	}
	return &authnv1.UserInfo{Name: f.name, Uid: f.uid, Groups: groups}, nil
}

// caller is who the server takes the caller for.
func caller(ctx context.Context, getter genericclioptions.RESTClientGetter) (*authnv1.UserInfo, error) {
	config, err := getter.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := authenticationclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	review, err := client.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	info := review.Status.UserInfo
	who := &authnv1.UserInfo{Name: info.Username, Uid: info.UID, Groups: info.Groups}
	for _, key := range slices.Sorted(maps.Keys(info.Extra)) {
		who.Extra = append(who.Extra, &authnv1.ExtraEntry{Key: key, Values: info.Extra[key]})
	}
	return who, nil
}
