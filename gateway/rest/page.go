package rest

import (
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// servePage serves the page's files, which are for browsers: they are not negotiated, and
// a browser's copy may do.
func (h *Handler) servePage(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		const allowed = "GET, HEAD"
		w.Header().Set("Allow", allowed)
		h.writeStatus(w, req, failure(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			fmt.Sprintf("%s is not allowed here, use %s", req.Method, http.MethodGet)))
		return
	}
	h.page.ServeHTTP(w, req)
}
