// Command describe makes the OpenAPI document of the gates' REST face, which the
// gateway serves, of the generated descriptions of the three services. `make generate`
// runs it.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/trigate/trigate/gateway/rest"
)

const (
	from = "proto/gen/openapi"
	to   = "gateway/rest/openapi.json"

	objectName     = "trigate.admission.v1.Object"
	admittedName   = "trigate.admission.v1.AdmitResponse"
	rpcStatusName  = "google.rpc.Status"
	failureName    = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"
	stateName      = "trigate.gates.Status"
	mediaJSON      = "application/json"
	mediaYAML      = "application/yaml"
	mediaStream    = "application/x-ndjson"
	definitionsRef = "#/definitions/"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	merged, err := merge()
	if err != nil {
		return err
	}
	document, err := json.MarshalIndent(describe(merged), "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", to, err)
	}
	return os.WriteFile(to, append(document, '\n'), 0o644)
}

// merge reads the descriptions of the three services into one.
func merge() (*spec.Swagger, error) {
	merged := &spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger: "2.0",
		Info: &spec.Info{InfoProps: spec.InfoProps{
			Title: "The gates of Trigate",
			Description: "What the services authn, authz and admission answer, by the gateway's own filters: the caller is " +
				"authenticated as for the Kubernetes API, and authorized for the verb (post, get) on the path.\n\n" +
				"Names of fields are read in camelCase and in snake_case, and written in camelCase. Values of enums may be " +
				"given without their prefix (CREATE), and bytes that are JSON as JSON. A question that names no user is about " +
				"the caller. One of admission takes its kind, resource, namespace and name from its object, is for CREATE and a " +
				"dry run unless it says otherwise. An object of a built-in kind gets its defaults, as in the Kubernetes API; " +
				"one of a custom resource is taken as it is.",
			Version: "v1",
		}},
		Paths:       &spec.Paths{Paths: map[string]spec.PathItem{}},
		Definitions: spec.Definitions{},
		Consumes:    []string{mediaJSON, mediaYAML},
		Produces:    []string{mediaJSON, mediaYAML},
	}}
	files, err := filepath.Glob(filepath.Join(from, "*.swagger.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no descriptions in %s (%v)", from, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		// What stands in another place does not need to be there too.
		content = []byte(strings.ReplaceAll(string(content), definitionsRef+rpcStatusName+`"`, definitionsRef+failureName+`"`))
		var part spec.Swagger
		if err := json.Unmarshal(content, &part); err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		for path, item := range part.Paths.Paths {
			merged.Paths.Paths[path] = item
		}
		for name, schema := range part.Definitions {
			merged.Definitions[name] = schema
		}
	}
	return merged, nil
}

// describe says what the generated descriptions do not know of: objects as they are,
// failures, streams and the state of the gates.
func describe(d *spec.Swagger) *spec3.OpenAPI {
	delete(d.Definitions, rpcStatusName)
	delete(d.Definitions, "google.protobuf.Any")
	d.Definitions[objectName] = *object("A Kubernetes object with apiVersion and kind, as JSON or YAML. "+
		"One that is in another encoding is an object with the members kind, encoding and data (base64), as in the gRPC API.", nil)
	defaulted := object("The object that admission was asked about, with the namespace and the defaults that the API server gives "+
		"an object of a built-in kind; only beside an object that admission changed.", nil)
	d.Definitions[admittedName].Properties[rest.DefaultedField] = *defaulted
	d.Definitions[failureName] = *schemaOf(reflect.TypeFor[metav1.Status]())
	d.Definitions[stateName] = *schemaOf(reflect.TypeFor[rest.Status]())
	d.Paths.Paths[rest.StatusPath] = read("GatesStatus", "How the gates are, as seen from this gateway.", spec.RefSchema(definitionsRef+stateName))
	d.Paths.Paths[rest.OpenAPIPath] = read("GatesOpenAPI", "This document.", object("", nil))
	for path, item := range d.Paths.Paths {
		for _, operation := range []*spec.Operation{item.Get, item.Post} {
			if operation == nil {
				continue
			}
			// The conversion knows of no formats but an operation's own.
			operation.Produces = d.Produces
			if rest.IsStream(path) {
				operation.Produces = []string{mediaStream}
			}
			if operation == item.Post {
				operation.Consumes = d.Consumes
			}
			operation.Responses.Default = &spec.Response{ResponseProps: spec.ResponseProps{
				Description: "Why there is no answer. With the code 503 the header Retry-After says when to try again.",
				Schema:      spec.RefSchema(definitionsRef + failureName),
			}}
		}
	}
	return openapiconv.ConvertV2ToV3(d)
}

func read(id, summary string, schema *spec.Schema) spec.PathItem {
	operation := &spec.Operation{OperationProps: spec.OperationProps{ID: id}}
	operation.Summary = summary
	operation.Responses = &spec.Responses{ResponsesProps: spec.ResponsesProps{StatusCodeResponses: map[int]spec.Response{
		200: {ResponseProps: spec.ResponseProps{Description: "A successful response.", Schema: schema}},
	}}}
	return spec.PathItem{PathItemProps: spec.PathItemProps{Get: operation}}
}

func object(description string, properties map[string]spec.Schema) *spec.Schema {
	return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Description: description, Properties: properties}}
}

// schemaOf describes a Go type by its JSON.
func schemaOf(t reflect.Type) *spec.Schema {
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Slice:
		return spec.ArrayProperty(schemaOf(t.Elem()))
	case reflect.String:
		return spec.StringProperty()
	case reflect.Bool:
		return spec.BooleanProperty()
	case reflect.Float64:
		return spec.Float64Property()
	case reflect.Struct:
		properties := map[string]spec.Schema{}
		addFields(t, properties)
		return object("", properties)
	}
	return spec.Int64Property()
}

func addFields(t reflect.Type, properties map[string]spec.Schema) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && field.Anonymous:
			addFields(field.Type, properties)
		case name != "":
			properties[name] = *schemaOf(field.Type)
		}
	}
}
