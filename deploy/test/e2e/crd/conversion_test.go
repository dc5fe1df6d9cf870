package crd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/deploy/test/framework"
)

// converter is a conversion webhook for gadgets.
type converter struct {
	// conversion is a definition's spec.conversion that names the webhook, as JSON.
	conversion string
	// converted is how many objects it has converted.
	converted atomic.Int64
}

func startConverter(t *testing.T) *converter {
	t.Helper()
	c := &converter{}
	webhook := framework.StartWebhook(t, framework.Conversion(c.convert))
	content, err := json.Marshal(apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: ptr.To(webhook.URL + "/convert"), CABundle: webhook.CABundle},
			ConversionReviewVersions: []string{"v1"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.conversion = string(content)
	return c
}

func (c *converter) convert(request *apiextensionsv1.ConversionRequest) *apiextensionsv1.ConversionResponse {
	response := &apiextensionsv1.ConversionResponse{Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, object := range request.Objects {
		raw, err := convertGadget(object.Raw, request.DesiredAPIVersion)
		if err != nil {
			return &apiextensionsv1.ConversionResponse{Result: metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}}
		}
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Raw: raw})
		c.converted.Add(1)
	}
	return response
}

// convertGadget moves the size to where the version has it.
func convertGadget(raw []byte, apiVersion string) ([]byte, error) {
	var object map[string]any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber() // a float64 would lose digits
	if err := decoder.Decode(&object); err != nil {
		return nil, err
	}
	object["apiVersion"] = apiVersion
	spec, _ := object["spec"].(map[string]any)
	dimensions, isV2 := spec["dimensions"].(map[string]any)
	switch size, isV1 := spec["size"]; {
	case spec["title"] == "flat" && strings.HasSuffix(apiVersion, "/v1"):
		return nil, fmt.Errorf("a flat gadget has no v1")
	case isV1 && strings.HasSuffix(apiVersion, "/v2"):
		spec["dimensions"] = map[string]any{"size": size}
		delete(spec, "size")
	case isV2 && strings.HasSuffix(apiVersion, "/v1"):
		spec["size"] = dimensions["size"]
		delete(spec, "dimensions")
	}
	return json.Marshal(object)
}

// number is a number as answers have it.
func number(digits string) json.Number { return json.Number(digits) }

func rules(rules ...rbacv1.PolicyRule) []rbacv1.PolicyRule { return rules }

func TestVersionsAreConverted(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		webhook := startConverter(t)
		g := define(t, c, transcript.Namespace(t), "conversion.trigate.test", webhook.conversion)
		admin := transcript.Admin(t)
		before := webhook.converted.Load()
		admin.Send(t, http.MethodPost, g.path("v1", ""), g.gadget("v1", "one", "size: 9007199254740993")).Want(t, http.StatusCreated)
		admin.Send(t, http.MethodPost, g.path("v2", ""), g.gadget("v2", "two", "size: 2")).Want(t, http.StatusCreated)
		if webhook.converted.Load() == before {
			t.Error("nothing was converted")
		}
		wantSize := func(answer *framework.Answer, want string, at ...any) {
			t.Helper()
			if got := answer.Want(t, http.StatusOK).Field(t, at...); got != number(want) {
				t.Errorf("%s: size = %v, want %s", answer.Request, got, want)
			}
		}
		get := func(version, name string) *framework.Answer {
			return admin.Send(t, http.MethodGet, g.path(version, name), "")
		}
		wantSize(get("v1", "one"), "9007199254740993", "spec", "size")
		wantSize(get("v2", "one"), "9007199254740993", "spec", "dimensions", "size")
		wantSize(get("v1", "two"), "2", "spec", "size")
		wantSize(get("v2", "two"), "2", "spec", "dimensions", "size")
		wantSize(get("v1", ""), "9007199254740993", "items", 0, "spec", "size")
		wantSize(get("v2", ""), "2", "items", 1, "spec", "dimensions", "size")

		t.Log("patches and applies meet the version of their request")
		wantSize(admin.Send(t, http.MethodPatch, g.path("v1", "two"), `{"spec": {"size": 9223372036854775807}}`, framework.MergePatch),
			"9223372036854775807", "spec", "size")
		wantSize(get("v2", "two"), "9223372036854775807", "spec", "dimensions", "size")
		admin.Send(t, http.MethodPatch, g.path("v2", "three")+"?fieldManager=a", g.gadget("v2", "three", "size: 3"), framework.ServerSideApply).
			Want(t, http.StatusCreated)
		admin.Send(t, http.MethodPatch, g.path("v1", "three")+"?fieldManager=b", g.gadget("v1", "three", "size: 4"), framework.ServerSideApply).
			Want(t, http.StatusConflict)
		wantSize(admin.Send(t, http.MethodPatch, g.path("v1", "three")+"?fieldManager=b&force=true", g.gadget("v1", "three", "size: 4"), framework.ServerSideApply),
			"4", "spec", "size")
		admin.Send(t, http.MethodDelete, g.path("v1", "three"), "").Want(t, http.StatusOK)

		t.Log("what cannot be converted is refused, and read in the other version")
		admin.Send(t, http.MethodPost, g.path("v2", ""), g.gadget("v2", "flat", "size: 1, title: flat")).Want(t, http.StatusCreated)
		get("v2", "flat").Want(t, http.StatusOK)
		// The message has a revision, so that it is not compared.
		unconverted := c.Admin(t).Send(t, http.MethodGet, g.path("v1", "flat"), "").Want(t, http.StatusInternalServerError)
		if message := unconverted.String(t, "message"); !strings.HasSuffix(message, "conversion webhook for conversion.trigate.test/v2, Kind=Gadget failed: a flat gadget has no v1") {
			t.Errorf("message = %q, want that of the webhook", message)
		}
		admin.Send(t, http.MethodDelete, g.path("v2", "flat"), "").Want(t, http.StatusOK)
	})
}

// TestAdmissionKeepsNumbersAndText has gadgets with everything that is easily lost
// on the way to a webhook and back, and with a webhook for v1 that is called for v2,
// too.
func TestAdmissionKeepsNumbersAndText(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		namespace := transcript.Namespace(t)
		g := define(t, c, namespace, "admission.trigate.test", startConverter(t).conversion)
		admission := framework.StartRecorder(t)
		admission.Decide(func(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			if request.Operation == admissionv1.Delete {
				return framework.Pass(request)
			}
			return framework.JSONPatch(`[{"op": "add", "path": "/metadata/labels", "value": {"größe": "x", "seen": "yes"}}, {"op": "remove", "path": "/metadata/labels/größe"}]`)
		})
		c.RegisterMutating(t, "gadgets.admission.trigate.test", admissionregistrationv1.MutatingWebhook{
			Name:                    "label.admission.trigate.test",
			ClientConfig:            admission.ClientConfig("/"),
			Rules:                   framework.Rule("*", "admission.trigate.test", "v1", "gadgets"),
			NamespaceSelector:       framework.InNamespace(namespace),
			MatchPolicy:             ptr.To(admissionregistrationv1.Equivalent),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		})
		admin := transcript.Admin(t)
		raw := framework.ContentType("application/json")
		for _, version := range []string{"v1", "v2"} {
			body := strings.NewReplacer("VERSION", version, "SIZE", map[string]string{
				"v1": `"size": 9007199254740993`, "v2": `"dimensions": {"size": 9007199254740993}`,
			}[version]).Replace(hardGadget)
			answer := admin.Send(t, http.MethodPost, g.path(version, ""), body, raw).Want(t, http.StatusCreated)
			wantHard(t, answer)
			wantHard(t, admin.Send(t, http.MethodGet, g.path(version, "hard-"+version), "").Want(t, http.StatusOK))
			wantHard(t, admin.Send(t, http.MethodPatch, g.path(version, "hard-"+version), `{"spec": {"replicas": 3}}`, framework.MergePatch).Want(t, http.StatusOK))
			admin.Send(t, http.MethodDelete, g.path(version, "hard-"+version), "").Want(t, http.StatusOK)
		}
		requests := admission.Take()
		if len(requests) != 6 {
			t.Errorf("the webhook was called %d times, want 6: a create, an update and a delete in each version", len(requests))
		}
		for _, request := range requests {
			if got := request.Kind.Version; got != "v1" {
				t.Errorf("the webhook was sent %s, want v1, which it asked for", got)
			}
			if len(request.Object.Raw) > 0 {
				transcript.Say("object of the webhook", json.RawMessage(request.Object.Raw))
			}
			if len(request.OldObject.Raw) > 0 {
				transcript.Say("old object of the webhook", json.RawMessage(request.OldObject.Raw))
			}
			if text := string(request.Object.Raw) + string(request.OldObject.Raw); !strings.Contains(text, `"size":9007199254740993`) {
				t.Errorf("the webhook was sent another size: %s", text)
			}
		}
	})
}

// hardGadget is a gadget with numbers and text that are easily lost.
const hardGadget = `{
	"apiVersion": "admission.trigate.test/VERSION", "kind": "Gadget",
	"metadata": {"name": "hard-VERSION", "annotations": {"note": "日本語 \u2028 \u0000 \"quoted\" <b>&</b> 🎉"}},
	"spec": {
		SIZE, "colour": "grün", "title": "Ünïcödé 世界 🎉",
		"extra": {
			"above": 9007199254740993, "below": -9007199254740993, "most": 9223372036854775807, "least": -9223372036854775808,
			"beyond": 18446744073709551616, "half": 0.5, "small": 1e-7, "whole": 3.0, "zero": 0, "no": false, "none": null, "empty": {},
			"key with ünïcödé 🎉": ["\ud83c\udf89", "\u007f", "a\tb\nc", ""]
		}
	}
}`

// wantHard wants the hard gadget in the answer, with the webhook's label.
func wantHard(t *testing.T, answer *framework.Answer) {
	t.Helper()
	for path, want := range map[string]any{
		"spec.extra.above":          number("9007199254740993"),
		"spec.extra.below":          number("-9007199254740993"),
		"spec.extra.most":           number("9223372036854775807"),
		"spec.extra.least":          number("-9223372036854775808"),
		"spec.extra.half":           number("0.5"),
		"spec.extra.no":             false,
		"spec.title":                "Ünïcödé 世界 🎉",
		"spec.colour":               "grün",
		"metadata.annotations.note": "日本語 \u2028 \x00 \"quoted\" <b>&</b> 🎉",
		"metadata.labels.seen":      "yes",
	} {
		var steps []any
		for step := range strings.SplitSeq(path, ".") {
			steps = append(steps, step)
		}
		if got := answer.Field(t, steps...); got != want {
			t.Errorf("%s: %s = %v, want %v", answer.Request, path, got, want)
		}
	}
	if got := answer.Field(t, "spec", "extra", "key with ünïcödé 🎉", 0); got != "🎉" {
		t.Errorf("%s: a key with unicode has %v, want 🎉", answer.Request, got)
	}
}
