package stage

import (
	"net/http"

	"k8s.io/apimachinery/pkg/util/sets"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	"github.com/trigate/trigate/gateway/rest"
)

// longRunning tells which requests have no time limit and do not count as in
// flight.
func longRunning(config *genericapiserver.Config) {
	basic := genericfilters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"),
	)
	config.LongRunningFunc = func(req *http.Request, info *genericapirequest.RequestInfo) bool {
		return basic(req, info) || !info.IsResourceRequest && rest.IsStream(info.Path)
	}
}
