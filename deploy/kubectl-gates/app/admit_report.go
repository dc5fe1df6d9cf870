package app

import (
	"bytes"
	"cmp"
	"errors"
	"net/url"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/kubectl/pkg/cmd/diff"
	"k8s.io/utils/exec"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
)

// The phases of admission, as the report names them.
const (
	phaseMutating   = "mutating"
	phaseValidating = "validating"
)

// admissionReport is what -o json and -o yaml print.
type admissionReport struct {
	metav1.TypeMeta `json:",inline"`
	Items           []admissionItem `json:"items"`
}

func newAdmissionReport() *admissionReport {
	return &admissionReport{
		TypeMeta: metav1.TypeMeta{APIVersion: "gates.trigate/v1", Kind: "AdmissionReport"}, Items: []admissionItem{},
	}
}

// admissionItem is what admission would do to one object.
type admissionItem struct {
	Operation  string `json:"operation"`
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name,omitempty"`
	Allowed    bool   `json:"allowed"`
	// DeniedBy is the phase that refuses it.
	DeniedBy string `json:"deniedBy,omitempty"`
	// Status is what the client would get for an answer.
	Status           *metav1.Status    `json:"status,omitempty"`
	Warnings         []string          `json:"warnings,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
	// Object is what admission makes of it; nil if it leaves it alone.
	Object *unstructured.Unstructured `json:"object,omitempty"`

	given *unstructured.Unstructured
	title string
}

func newAdmissionItem(info *resource.Info, operation string, given *unstructured.Unstructured) *admissionItem {
	gvk := info.Mapping.GroupVersionKind
	title := strings.ToLower(gvk.GroupKind().String()) + "/" + cmp.Or(info.Name, given.GetGenerateName())
	if info.Namespace != "" {
		title += " in namespace " + info.Namespace
	}
	return &admissionItem{
		Operation: operation, APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Namespace: info.Namespace, Name: info.Name,
		given: given, title: title,
	}
}

// add adds what one phase says.
func (i *admissionItem) add(phase string, outcome *admissionv1.Outcome) {
	i.Allowed = outcome.GetAllowed()
	for _, warning := range outcome.GetWarnings() {
		i.Warnings = append(i.Warnings, warning.GetText())
	}
	for _, annotation := range outcome.GetAuditAnnotations() {
		if i.AuditAnnotations == nil {
			i.AuditAnnotations = map[string]string{}
		}
		i.AuditAnnotations[annotation.GetKey()] = annotation.GetValue()
	}
	if !i.Allowed {
		i.DeniedBy, i.Status = phase, statusOf(outcome.GetFailure())
	}
}

// statusOf is the answer that a client would get.
func statusOf(failure *admissionv1.Failure) *metav1.Status {
	s := failure.GetStatus()
	if s == nil {
		return &metav1.Status{Status: metav1.StatusFailure, Message: failure.GetMessage(), Reason: metav1.StatusReasonInternalError, Code: 500}
	}
	status := &metav1.Status{Status: s.GetStatus(), Message: s.GetMessage(), Reason: metav1.StatusReason(s.GetReason()), Code: s.GetCode()}
	if d := s.GetDetails(); d != nil {
		status.Details = &metav1.StatusDetails{
			Name: d.GetName(), Group: d.GetGroup(), Kind: d.GetKind(), UID: types.UID(d.GetUid()), RetryAfterSeconds: d.GetRetryAfterSeconds(),
		}
		for _, cause := range d.GetCauses() {
			status.Details.Causes = append(status.Details.Causes, metav1.StatusCause{
				Type: metav1.CauseType(cause.GetType()), Message: cause.GetMessage(), Field: cause.GetField(),
			})
		}
	}
	return status
}

// print prints the item for people.
func (i *admissionItem) print(streams genericiooptions.IOStreams) error {
	p := newPage(streams.Out)
	p.printf(strong, "%s (%s): ", i.title, i.Operation)
	switch {
	case !i.Allowed:
		p.printf(bad, "denied by %s admission", i.DeniedBy)
		p.printf(plain, " (%d %s)\n", i.Status.Code, i.Status.Reason)
		p.printf(plain, "  %s\n", strings.ReplaceAll(i.Status.Message, "\n", "\n  "))
		if i.Status.Details != nil {
			for _, cause := range i.Status.Details.Causes {
				p.printf(plain, "  - %s: %s\n", cmp.Or(cause.Field, string(cause.Type)), cause.Message)
			}
		}
	case i.Object == nil:
		p.printf(good, "allowed")
		p.printf(plain, ", unchanged\n")
	default:
		p.printf(good, "allowed")
		p.printf(plain, ", changed:\n")
	}
	for _, warning := range i.Warnings {
		p.printf(plain, "  Warning: %s\n", warning)
	}
	if p.err != nil || !i.Allowed || i.Object == nil {
		return p.err
	}
	return i.printDiff(streams)
}

// printDiff prints what admission changes, by the diff program of kubectl diff.
func (i *admissionItem) printDiff(streams genericiooptions.IOStreams) error {
	differ, err := diff.NewDiffer("GIVEN", "ADMITTED")
	if err != nil {
		return err
	}
	defer differ.TearDown()
	var from, to runtime.Object = withoutManagedFields(i.given), withoutManagedFields(i.Object)
	if i.APIVersion == "v1" && i.Kind == "Secret" {
		masked, err := diff.NewMasker(from, to)
		if err != nil {
			return err
		}
		from, to = masked.From(), masked.To()
	}
	// A name may have any characters, and only the server would refuse it.
	name := url.PathEscape(strings.Join([]string{i.APIVersion, i.Kind, i.Namespace, i.Name}, "."))
	if err := differ.From.Print(name, from, diff.Printer{}); err != nil {
		return err
	}
	if err := differ.To.Print(name, to, diff.Printer{}); err != nil {
		return err
	}
	var out bytes.Buffer
	program := &diff.DiffProgram{Exec: exec.New(), IOStreams: genericiooptions.IOStreams{In: streams.In, Out: &out, ErrOut: streams.ErrOut}}
	err = differ.Run(program)
	// As diff's: 1 is that there are differences.
	if exit := exec.ExitError(nil); err != nil && !(errors.As(err, &exit) && exit.ExitStatus() == 1) {
		return err
	}
	if os.Getenv("KUBECTL_EXTERNAL_DIFF") != "" {
		_, err := streams.Out.Write(out.Bytes())
		return err
	}
	return printDiffLines(streams, out.String())
}

// printDiffLines prints a unified diff with colours.
func printDiffLines(streams genericiooptions.IOStreams, text string) error {
	p := newPage(streams.Out)
	for line := range strings.Lines(text) {
		s := plain
		switch line[0] {
		case '+':
			s = good
		case '-':
			s = bad
		case '@':
			s = hunk
		}
		p.printf(s, "%s", line)
	}
	return p.err
}

// withoutManagedFields is an object without what nobody reads in a diff.
func withoutManagedFields(object *unstructured.Unstructured) *unstructured.Unstructured {
	object = object.DeepCopy()
	object.SetManagedFields(nil)
	return object
}
