// Package ui is the page at /gates/ui/: the state of the gates, and forms to ask why
// somebody may do something and who may. It is a few static files without anything
// from outside. The page asks the same paths as everybody else, as whoever opens it.
package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Path is the path of the page. Its parts are below it.
const Path = "/gates/ui/"

// bare is what people type.
const bare = "/gates/ui"

// contentSecurityPolicy lets the page do nothing but what it does: its own script,
// style and icon, and requests to where it came from. Nobody may frame it, and a text becomes
// HTML nowhere in it.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

//go:embed index.html app.js style.css icon.svg
var files embed.FS

// mediaTypes are those of the files, whatever the machine's tables say.
var mediaTypes = map[string]string{
	"index.html": "text/html; charset=utf-8",
	"app.js":     "text/javascript; charset=utf-8",
	"style.css":  "text/css; charset=utf-8",
	"icon.svg":   "image/svg+xml",
}

// Paths returns the paths that are served, sorted.
func Paths() []string {
	paths := []string{bare, Path}
	for name := range mediaTypes {
		if name != "index.html" {
			paths = append(paths, Path+name)
		}
	}
	slices.Sort(paths)
	return paths
}

// file is one of the files, with a tag that changes with its content.
type file struct {
	mediaType, tag string
	content        []byte
}

// Handler serves the page. It is safe for concurrent use.
type Handler struct {
	files map[string]file // by path
}

var _ http.Handler = (*Handler)(nil)

// New returns the handler.
func New() (*Handler, error) {
	h := &Handler{files: map[string]file{}}
	for name, mediaType := range mediaTypes {
		content, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading the page's %s: %w", name, err)
		}
		sum := sha256.Sum256(content)
		at := Path + name
		if name == "index.html" {
			at = Path
		}
		h.files[at] = file{mediaType: mediaType, tag: `"` + hex.EncodeToString(sum[:16]) + `"`, content: content}
	}
	return h, nil
}

// Serves reports whether a path is one of the page's.
func (h *Handler) Serves(path string) bool {
	_, ok := h.files[path]
	return ok || path == bare
}

// ServeHTTP implements http.Handler, for GET and HEAD of Paths. The location of the
// redirect is relative, since a proxy may serve the gateway below a path of its own.
func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", contentSecurityPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	// A browser asks each time whether its copy is right, and so whether it may have it.
	header.Set("Cache-Control", "private, no-cache")
	if req.URL.Path == bare {
		header.Set("Location", "ui/")
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	f, ok := h.files[req.URL.Path]
	if !ok {
		http.NotFound(w, req)
		return
	}
	header.Set("Content-Type", f.mediaType)
	header.Set("ETag", f.tag)
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(f.content))
}
