package explain

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	authzconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/auth/authorizer/abac"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"github.com/trigate/trigate/services/authz/internal/convert"
)

// privilegedGroup is upstream's name for the authorizer that is first in every
// chain and that no configuration has.
const privilegedGroup = "kubernetes.io/system-privileged-group"

// typeOf returns the type of the authorizer of a name. It is empty for those that are
// not configured: a reload may just have taken one away.
func typeOf(name string, authorizers []authzconfig.AuthorizerConfiguration) string {
	i := slices.IndexFunc(authorizers, func(a authzconfig.AuthorizerConfiguration) bool { return a.Name == name })
	if i < 0 {
		return ""
	}
	return string(authorizers[i].Type)
}

// notListedBy returns the names of those authorizers that cannot tell whom they
// allow. RBAC can, and AlwaysDeny allows nobody.
func notListedBy(authorizers []authzconfig.AuthorizerConfiguration) []string {
	var names []string
	for _, a := range authorizers {
		if kind := string(a.Type); kind != modes.ModeRBAC && kind != modes.ModeAlwaysDeny {
			names = append(names, a.Name)
		}
	}
	return names
}

// decidedBy returns in a sentence what decided a question, if it was another
// authorizer than RBAC, from what each of them said. It is empty if RBAC decided, or
// nobody.
func (e *Explainer) decidedBy(ctx context.Context, a authorizer.Attributes, said []convert.Say, authorizers []authzconfig.AuthorizerConfiguration) string {
	if len(said) == 0 {
		return ""
	}
	last := said[len(said)-1]
	if last.Decision == authorizer.DecisionNoOpinion {
		return ""
	}
	if last.Name == privilegedGroup {
		return fmt.Sprintf("group %q may do everything", user.SystemPrivilegedGroup)
	}
	switch kind := typeOf(last.Name, authorizers); kind {
	case modes.ModeRBAC:
		return ""
	case modes.ModeAlwaysAllow:
		return kind + " allows everything"
	case modes.ModeNode:
		node, _ := nodeidentifier.NewDefaultNodeIdentifier().NodeIdentity(a.GetUser())
		return withReason(fmt.Sprintf("the Node authorizer %s to node %q", verdict(last), node), last)
	case modes.ModeABAC:
		return e.abacLine(ctx, a) + " " + verdict(last)
	case modes.ModeWebhook:
		return withReason(fmt.Sprintf("webhook %q %s", last.Name, verdict(last)), last)
	default:
		return withReason(fmt.Sprintf("authorizer %q %s", last.Name, verdict(last)), last)
	}
}

func verdict(say convert.Say) string {
	if say.Decision == authorizer.DecisionAllow {
		return "allows it"
	}
	return "refuses it"
}

func withReason(sentence string, say convert.Say) string {
	if say.Reason == "" {
		return sentence
	}
	return sentence + ": " + say.Reason
}

// abacLine names the line of the ABAC policy that decides a question. Upstream
// evaluates one line at a time.
func (e *Explainer) abacLine(ctx context.Context, a authorizer.Attributes) string {
	for i, policy := range e.abac {
		if decision, _, _ := (abac.PolicyList{policy}).Authorize(ctx, a); decision == authorizer.DecisionAllow {
			return fmt.Sprintf("line %d of the ABAC policy", e.abacLines[i])
		}
	}
	return "the ABAC policy"
}

// readABAC reads an ABAC policy file as upstream does, and returns the line that
// each policy is on.
func readABAC(path string) (abac.PolicyList, []int, error) {
	policies, err := abac.NewFromFile(path)
	if err != nil {
		return nil, nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	var lines []int
	scanner := bufio.NewScanner(bytes.NewReader(data))
	for line := 1; scanner.Scan(); line++ {
		// Upstream skips these, and no others.
		if text := strings.TrimSpace(scanner.Text()); text != "" && !strings.HasPrefix(text, "#") {
			lines = append(lines, line)
		}
	}
	if len(lines) != len(policies) {
		return nil, nil, fmt.Errorf("reading the lines of policy file %s: %d have policies, of which there are %d", path, len(lines), len(policies))
	}
	return policies, lines, scanner.Err()
}
