package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
)

// A server that refuses the credential, or asks for one, ends the program with the server's message.
func TestPayIsNotLetIn(t *testing.T) {
	t.Parallel()
	for _, code := range []connect.Code{connect.CodeUnauthenticated, connect.CodePermissionDenied} {
		answers := connect.NewErrorWriter()
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := answers.Write(w, r, connect.NewError(code, errors.New("no key"))); err != nil {
				t.Error(err)
			}
		}))
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetHTTP1(true)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
		err := run(t.Context(), server.URL, t.TempDir(), "till", 1) // ends, or the test never does
		if err == nil || !strings.Contains(err.Error(), code.String()) || !strings.Contains(err.Error(), "no key") {
			t.Errorf("%s: the program ended with %v", code, err)
		}
		server.Close()
	}
}
