package stage

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	restclient "k8s.io/client-go/rest"

	admissionclient "github.com/trigate/trigate/services/admission/client"
	authnclient "github.com/trigate/trigate/services/authn/client"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

// TestRESTLearnsOfKinds wants the REST face to find the resource of a kind that is defined
// after it has looked for another.
func TestRESTLearnsOfKinds(t *testing.T) {
	var defined atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		groups, resources := metav1.APIGroupList{}, metav1.APIResourceList{}
		for _, name := range []string{"one", "two"} {
			if name == "two" && !defined.Load() {
				continue
			}
			version := metav1.GroupVersionForDiscovery{GroupVersion: name + ".example.com/v1", Version: "v1"}
			groups.Groups = append(groups.Groups, metav1.APIGroup{
				Name: name + ".example.com", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
			})
			if strings.HasSuffix(req.URL.Path, version.GroupVersion) {
				resources.GroupVersion = version.GroupVersion
				resources.APIResources = []metav1.APIResource{{Name: name + "s", Kind: name, Version: "v1", Verbs: []string{"get"}}}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		var answer any = resources
		switch req.URL.Path {
		case "/apis":
			answer = groups
		case "/api":
			answer = metav1.APIVersions{}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	var nobody *authnclient.Conn
	r, err := newREST(&genericapiserver.Config{LoopbackClientConfig: &restclient.Config{Host: server.URL, QPS: -1}},
		&Gates{Authz: &authzclient.Client{Link: nobody}, Admission: &admissionclient.Client{Link: nobody}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.equivalents.kinds.RESTMapping(schema.GroupKind{Group: "one.example.com", Kind: "one"}, "v1"); err != nil {
		t.Fatal(err)
	}
	defined.Store(true)
	if _, err := r.equivalents.kinds.RESTMapping(schema.GroupKind{Group: "two.example.com", Kind: "two"}, "v1"); err != nil {
		t.Error(err)
	}
}
