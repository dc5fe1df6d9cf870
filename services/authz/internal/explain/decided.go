package explain

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"

	authzconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/auth/authorizer/abac"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"github.com/trigate/trigate/services/authz/internal/convert"
)

// Authorizer is one of the chain.
type Authorizer struct {
	// Name is its name in the configuration.
	Name string
	// Type is its type there. Empty for the one that every chain has without being
	// configured, which lets system:masters do everything.
	Type authzconfig.AuthorizerType
}

// typeOf returns the type of the authorizer of a name, or unknown: a reload has just
// taken it away.
func typeOf(name string, authorizers []Authorizer) string {
	for _, a := range authorizers {
		if a.Name == name {
			return string(a.Type)
		}
	}
	return unknown
}

// unknown is the type of no authorizer.
const unknown = "unknown"

// notListedBy returns the names of those authorizers that cannot tell whom they
// allow. RBAC can, AlwaysDeny allows nobody, and the members of system:masters are
// not known to anybody.
func notListedBy(authorizers []Authorizer) []string {
	var names []string
	for _, a := range authorizers {
		switch string(a.Type) {
		case "", modes.ModeRBAC, modes.ModeAlwaysDeny:
		default:
			names = append(names, a.Name)
		}
	}
	return names
}

// decidedBy returns in a sentence what decided a question, if it was another
// authorizer than RBAC, from what each of them said. It is empty if RBAC decided, or
// nobody.
func (e *Explainer) decidedBy(ctx context.Context, a authorizer.Attributes, said []convert.Say, authorizers []Authorizer) string {
	if len(said) == 0 {
		return ""
	}
	last := said[len(said)-1]
	if last.Decision == authorizer.DecisionNoOpinion {
		return ""
	}
	switch kind := typeOf(last.Name, authorizers); kind {
	case modes.ModeRBAC:
		return ""
	case "":
		return fmt.Sprintf("group %q may do everything", user.SystemPrivilegedGroup)
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
