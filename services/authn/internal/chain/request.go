package chain

import (
	"encoding/base64"
	"net/http"
	"strings"
	"unicode/utf8"
)

// requestWith returns a request from which upstream's authenticators read
// exactly this token, and nil if there is none: then no request to
// kube-apiserver can carry the token either.
//
// There are two places for a token in a request. In the WebSocket protocol it is
// base64, so that spaces and line breaks in it survive, but it has to be UTF-8.
// In the Authorization header it ends at the first space, and white space at its
// end is lost.
func requestWith(token string) *http.Request {
	switch {
	case token == "":
		return nil
	case utf8.ValidString(token):
		return websocketRequest(token)
	case !strings.Contains(token, " ") && strings.TrimSpace(token) == token:
		return headerRequest(token)
	}
	return nil
}

func headerRequest(token string) *http.Request {
	return &http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}
}

// websocketRequest names a second protocol, since upstream demands one that the
// server can answer with.
func websocketRequest(token string) *http.Request {
	return &http.Request{Method: http.MethodGet, Header: http.Header{
		"Connection": {"Upgrade"},
		"Upgrade":    {"websocket"},
		"Sec-Websocket-Protocol": {
			"base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token)),
			"trigate",
		},
	}}
}
