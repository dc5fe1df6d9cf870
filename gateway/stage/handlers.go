package stage

import (
	"net/http"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// WrapHandlers returns build with ours around it. build makes the handler chain of
// the outermost server, the one that every request passes: upstream's
// DefaultBuildHandlerChain, or what upstream puts in its place.
func (c *Config) WrapHandlers(build func(http.Handler, *genericapiserver.Config) http.Handler) func(http.Handler, *genericapiserver.Config) http.Handler {
	return func(apiHandler http.Handler, config *genericapiserver.Config) http.Handler {
		return withUnavailable(build(apiHandler, config), config.Serializer, c.undecided)
	}
}
