package rest

import (
	_ "embed" // the document
	"net/http"
)

// OpenAPIPath answers with the OpenAPI document of all that is served.
const OpenAPIPath = Prefix + "openapi.json"

// document is made by `make generate`.
//
//go:embed openapi.json
var document []byte

func serveOpenAPI(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	w.Header().Set("Content-Type", mediaJSON)
	_, _ = w.Write(document) // The client may have gone.
}
