// Package console is the web page on which a person looks at a ledger. Its sources, in TypeScript, lie beside it; what
// Vite makes of them is committed in dist, so that Go alone builds the server. make check-console compares the two.
package console

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed dist
var dist embed.FS

// Path is where the console is served. The page calls the API at the parent of this path.
const Path = "/console/"

// policy lets the page load its own script and style and call its own server, and nothing else. The page has no inline
// code.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// Handler serves the files of the console below [Path]. They hold no secrets and need no credential: the page asks for
// one and sends it with its calls.
func Handler() http.Handler {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // the embedded directory is always there
	}
	server := http.StripPrefix(Path, http.FileServerFS(files))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		server.ServeHTTP(w, r)
	})
}

// Redirect sends who asks for / to the console, and all other requests to next.
func Redirect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			http.Redirect(w, r, Path, http.StatusSeeOther)
			return
		}
		next.ServeHTTP(w, r)
	})
}
