package idempotency_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// Two spellings of a media type are one, and two types are two.
func TestMediaTypes(t *testing.T) {
	t.Parallel()
	of := func(mode idempotency.FingerprintMode, mediaType string) idempotency.Fingerprint {
		f := must.Get(idempotency.NewFingerprint(t.Context(), mode, nil, &idempotency.Request{
			MediaType: mediaType, Body: []byte("{}"),
		}))(t)
		return f
	}
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{"application/json", "Application/JSON; Charset=UTF-8", true},
		{"application/json", `application/json;charset="utf8"`, true},
		{"application/problem+json", "application/problem+json; charset=Utf-8", true},
		{"text/plain", "text/plain;charset=utf-8", true},
		{"application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=UTF-8", true},
		{"text/plain; charset=LATIN1", "text/plain; charset=latin1", true},
		{"a/b; x=1; y=2", "A/B;Y=2;X=1", true},
		{"multipart/form-data; boundary=1", "multipart/form-data; boundary=2", true},
		{"multipart/mixed; boundary=----=_Part_1_2.3; v=1", "Multipart/Mixed; v=1; Boundary = ----=_Part_4_5.6", true},
		{"multipart/mixed; boundary=a:b", `multipart/mixed; boundary="a/b"`, true},
		{"multipart/mixed; v*=utf-8''1; boundary=1", "multipart/mixed; v*=utf-8''1; boundary=a/b", true},
		{"application/json", "text/plain", false},
		{"multipart/mixed; boundary=a:b; v=1", "multipart/mixed; boundary=a:b; v=2", false},
		{"multipart/mixed; v*=utf-8''1; v=1; boundary=1", "multipart/mixed; v*=utf-8''1; v=2; boundary=1", false},
		{"multipart/mixed; boundary=1; boundary*=utf-8''3", "multipart/mixed; boundary=2; boundary*=utf-8''3", false},
		{"text/plain; charset=latin1; charset*=utf-8''utf-8",
			"text/plain; charset=latin2; charset*=utf-8''utf-8", false},
		{"text/plain; charset*=latin1''utf-16", "text/plain", false},
		{"text/plain; v*1=1", "text/plain", false},
		{`text/plain; v="é"`, "text/plain; v*=utf-8''%C3%A9", false},
		{"text/plain", "text/plain; charset=latin1", false},
		{"application/json; v=1", "application/json; v=2", false},
		{"application/xml", "application/xml; charset=utf-8", false},
		{"multipart/form-data; boundary=1", "multipart/mixed; boundary=1", false},
		{"application/json", "", false},
		{"not a type (", "not a type ((", false},
	} {
		raw, none := idempotency.FingerprintRaw, idempotency.FingerprintNone
		check.Equal(t, of(raw, test.a) == of(raw, test.b), test.same, "%s and %s: equal %v", test.a, test.b)
		check.Equal(t, of(none, test.a), of(none, test.b), "%s and %s differ, although the body is not compared: %v",
			test.a, test.b)
	}
}

// form returns a multipart body.
func form(boundary string, parts ...string) string {
	return "--" + boundary + "\r\n" + strings.Join(parts, "\r\n--"+boundary+"\r\n") + "\r\n--" + boundary + "--\r\n"
}

func field(header, content string) string {
	return strings.ReplaceAll(header, "\n", "\r\n") + "\r\n\r\n" + content
}

// A multipart body is compared by its parts, in their order.
func TestMultipart(t *testing.T) {
	t.Parallel()
	const plain = "\nContent-Type: text/plain"
	const name, file = `Content-Disposition: form-data; name="a"`, `Content-Disposition: form-data; name="f"; filename="x"`
	amount, upload := field(name, "5"), field(file+plain, "hello\n")
	nested := func(boundary string, parts ...string) string {
		return field("Content-Type: multipart/mixed; boundary="+boundary, form(boundary, parts...))
	}
	base := form("one", amount, upload)
	for what, test := range map[string]struct {
		boundary, body string
		same           bool
	}{
		"another boundary":              {"two", form("two", amount, upload), true},
		"a boundary without its quotes": {"----=_Part_1_2.3", form("----=_Part_1_2.3", amount, upload), true},
		"other bytes in one":            {"a/b:c", form("a/b:c", field(name, "6"), upload), false},
		"header in lower case": {"one", form("one", field("content-disposition: form-data; name=a", "5"), upload),
			true},
		"charset of a part": {"two", form("two", amount, field(file+"\nContent-Type: text/plain; charset=UTF-8",
			"hello\n")), true},
		"another order": {"two", form("two", upload, amount), false},
		"another name":  {"two", form("two", field(strings.Replace(name, "a", "b", 4), "5"), upload), false},
		"another filename": {"two", form("two", amount, field(strings.Replace(file, "x", "y", 1)+plain,
			"hello\n")), false},
		"no filename":   {"two", form("two", amount, field(strings.Replace(name, `"a"`, `"f"`, 1)+plain, "hello\n")), false},
		"another type":  {"two", form("two", amount, field(file+"\nContent-Type: text/html", "hello\n")), false},
		"other bytes":   {"two", form("two", field(name, "6"), upload), false},
		"one part more": {"two", form("two", amount, upload, amount), false},
		"shifted":       {"two", form("two", field(name, "5hello\n"), field(file+plain, "")), false},
		"cut off":       {"one", strings.TrimSuffix(base, "--\r\n"), false},
	} {
		print := func(boundary, body string) idempotency.Fingerprint {
			f := must.Get(idempotency.NewFingerprint(t.Context(), idempotency.FingerprintRaw, nil, &idempotency.Request{
				MediaType: "multipart/form-data; boundary=" + boundary, Body: []byte(body),
			}))(t)
			return f
		}
		check.Equal(t, print("one", base) == print(test.boundary, test.body), test.same, "%s: equal %v", what)
		// The same within a part.
		outer := print("o", form("o", nested("one", amount, upload)))
		if inner := print("o", form("o", field("Content-Type: multipart/mixed; boundary="+test.boundary,
			test.body))); (outer == inner) != test.same {
			t.Errorf("%s, nested: equal %v", what, !test.same)
		}
	}
	// The bytes of a body that does not parse are compared, and so are those of one with too many parts.
	s := newService(t)
	broken := header("Content-Type", "multipart/form-data; boundary=b")
	s.expect(s.send(broken, body("no part")), http.StatusCreated, "false", 1)
	s.expect(s.send(broken, body("no part")), http.StatusCreated, "true", 1)
	s.refused(s.send(broken, body("no parts")), 422, idempotency.CodeKeyReused, idempotency.OtherKey, 1)
}

// The header of a part that programs may read in two ways is compared as it is.
func TestMultipartHeaders(t *testing.T) {
	t.Parallel()
	const disposition = "Content-Disposition: form-data; "
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{disposition + "name=a; name*=utf-8''x", disposition + "name=a; name*=utf-8''x", true},
		{disposition + `name="*="; filename=x`, disposition + `filename="x"; name="*="`, true},
		{"X-A: 1\nX-B: 2", "x-b: 2\nx-a: 1", true},
		{"X-A: 1\nX-A: 2", "X-A: 2\nX-A: 1", false},
		{disposition + "name=a; name*=utf-8''x", disposition + "name=b; name*=utf-8''x", false},
		{disposition + "name=a; name*=latin1''x", disposition + "name=a; name*=latin1''y", false},
		{disposition + "filename=x; filename*=utf-8''z", disposition + "filename=y; filename*=utf-8''z", false},
		{disposition + "name=a; filename*0=x; filename*1=y", disposition + "name=a; filename*0=xy", false},
		{disposition + "name=a; filename*1=x", disposition + "name=a", false},
		{disposition + `name="é"`, disposition + "name*=utf-8''%C3%A9", false},
	} {
		print := func(boundary, lines string) idempotency.Fingerprint {
			f := must.Get(idempotency.NewFingerprint(t.Context(), idempotency.FingerprintRaw, nil, &idempotency.Request{
				MediaType: "multipart/form-data; boundary=" + boundary, Body: []byte(form(boundary, field(lines, "5"))),
			}))(t)
			return f
		}
		check.Equal(t, print("one", test.a) == print("two", test.b), test.same, "%q and %q: equal %v", test.a, test.b)
	}
}

// pack compresses a text.
func pack(t *testing.T, coding, text string, level int) string {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch coding {
	case "gzip":
		w, err = gzip.NewWriterLevel(&b, level)
	case "zlib":
		w, err = zlib.NewWriterLevel(&b, level)
	case "flate":
		w, err = flate.NewWriter(&b, level)
	}
	must.Do(t, err)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

// A body that is compressed in another way, or not, is the same request. What it contains is bounded.
func TestContentCodings(t *testing.T) {
	t.Parallel()
	const text = `{"amount":5,"note":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`
	coded := func(coding, text string) func(*http.Request) {
		return two(header("Content-Encoding", coding), body(text))
	}
	for _, mode := range []idempotency.FingerprintMode{idempotency.FingerprintRaw, idempotency.FingerprintJCS} {
		s := newService(t, func(o *idempotency.Options) { o.MaxBody, o.Fingerprint = 4096, mode })
		var got string
		s.charge.serve = func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			got = string(b)
			w.WriteHeader(http.StatusCreated)
		}
		first := pack(t, "gzip", text, 1)
		s.expect(s.send(coded("gzip", first)), http.StatusCreated, "false", 1)
		check.Equal(t, got, first, "the handler got %q")
		for i, same := range []func(*http.Request){
			coded("GZip", pack(t, "gzip", text, 9)), coded("x-gzip", first), body(text), coded("identity", text),
			coded("deflate", pack(t, "zlib", text, 5)), coded("deflate", pack(t, "flate", text, 5)),
			coded("deflate, gzip", pack(t, "gzip", pack(t, "zlib", text, 5), 1)),
			two(header("Content-Encoding", "deflate", "gzip"), body(pack(t, "gzip", pack(t, "zlib", text, 5), 1))),
		} {
			t.Log(i)
			s.expect(s.send(same), http.StatusCreated, "true", 1)
		}
		for _, more := range []func(*http.Request){
			coded("gzip", pack(t, "gzip", text, 1)+"x"), coded("deflate", pack(t, "zlib", text, 5)+"AAAA"),
			coded("deflate", pack(t, "flate", text, 5)+"x"),
		} {
			broken := s.send(more)
			if mode == idempotency.FingerprintRaw {
				s.refused(broken, 422, idempotency.CodeKeyReused, idempotency.OtherKey, 1)
			} else {
				s.refused(broken, 400, idempotency.CodeBodyInvalid, idempotency.FixRequest, 1)
			}
		}
		s.refused(s.send(coded("gzip", pack(t, "gzip", strings.Repeat("0", 4097), 9))), 413,
			idempotency.CodeBodyTooLarge, idempotency.FixRequest, 1)
	}
	// A body that is not in its coding is compared by its bytes.
	s := newService(t)
	s.expect(s.send(coded("gzip", "abc")), http.StatusCreated, "false", 1)
	s.expect(s.send(coded("gzip", "abc")), http.StatusCreated, "true", 1)
	s.refused(s.send(coded("gzip", "abd")), 422, idempotency.CodeKeyReused, idempotency.OtherKey, 1)
	s.refused(s.send(body("abc")), 422, idempotency.CodeKeyReused, idempotency.OtherKey, 1)
	// A coding that cannot be undone is refused, unless bodies are not compared: two compressions of one body differ.
	for _, coding := range []string{"br", "zstd", "gzip,br", "gzip,gzip,gzip,gzip,gzip"} {
		s := newService(t)
		s.refused(s.send(coded(coding, "abc")), 415, idempotency.CodeBodyCoding, idempotency.FixRequest, 0)
		s = newService(t, func(o *idempotency.Options) { o.Fingerprint = idempotency.FingerprintNone })
		s.expect(s.send(coded(coding, "abc")), http.StatusCreated, "false", 1)
		s.expect(s.send(coded(coding, "abd")), http.StatusCreated, "true", 1)
	}
}

// A number that a double does not keep is refused by its pointer, and so is a chosen value that tells nothing.
func TestBodiesThatTellNothing(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		`{"amount":1.000000000000000001}`:           "/amount: the number 1.000000000000000001 has more digits",
		`{"id":"a","x":[0,{"y":9007199254740993}]}`: "/x/1/y: the number 9007199254740993 is beyond",
		`{"id":"a","amount":1e400}`:                 "/amount: the number 1e400 is out of range",
		`{"amount":5}`:                              "/id is missing or empty",
		`{"id":null}`:                               "/id is missing or empty",
		`{"id":"  "}`:                               "/id is missing or empty",
		`{"id":[[],{"a":null}]}`:                    "/id is missing or empty",
		`{"id":"a"}`:                                "/amount is missing or empty",
		``:                                          "/id is missing or empty",
	} {
		s := newService(t, func(o *idempotency.Options) {
			o.Fingerprint, o.Pointers = idempotency.FingerprintPointers, []string{"/id", "/amount"}
		})
		answer := s.send(body(content))
		text, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "body-invalid") ||
			!strings.Contains(string(text), want) || !strings.Contains(string(text), "fix-request") ||
			s.charge.runs.Load() != 0 {
			t.Errorf("%s: %d %s, want %s", content, answer.StatusCode, text, want)
		}
	}
	s := newService(t, func(o *idempotency.Options) { o.Fingerprint = idempotency.FingerprintJCS })
	for i, amount := range []string{"1.000000000000000001", "1.000000000000000002", "90071992547409.915"} {
		s.refused(s.send(body(fmt.Sprintf(`{"amount":%s}`, amount))), 400, idempotency.CodeBodyInvalid,
			idempotency.FixRequest, 0)
		t.Log(i)
	}
	s.expect(s.send(body(`{"amount":0.10}`)), http.StatusCreated, "false", 1)
	s.expect(s.send(body(`{"amount":1e-1}`)), http.StatusCreated, "true", 1)
	s.refused(s.send(body(`{"amount":0.11}`)), 422, idempotency.CodeKeyReused, idempotency.OtherKey, 1)
}

// Two spellings of a path have the same keys. Those that are one path to every service are one request. A repeat in
// another one does not run, does not get the response of a resource that the service may tell apart, and is not told to
// come with a new key, because the service may see the same resource in it.
func TestSpellingsHaveOneKey(t *testing.T) {
	t.Parallel()
	s := newService(t)
	at := func(path string) *http.Response {
		return s.send(func(r *http.Request) {
			u := must.Get(r.URL.Parse(path))(t)
			r.URL = u
		})
	}
	runs := int64(0)
	own := func(path string) {
		t.Helper()
		runs++
		s.expect(at(path), http.StatusCreated, "false", runs)
		s.expect(at(path), http.StatusCreated, "true", runs)
	}
	again := func(path string) {
		t.Helper()
		s.expect(at(path), http.StatusCreated, "true", runs)
	}
	unknown := func(path string) {
		t.Helper()
		s.refused(at(path), 409, idempotency.CodeOutcomeUnknown, idempotency.Reconcile, runs)
	}
	own("/a%2fb/c-d")
	again("/%61%2Fb/%63%2Dd")
	own("/a/b/c-d")
	own("/a%252fb/c-d")
	unknown("/a/b/c-d/") // many services ignore a slash at the end
	own("/files/")
	unknown("/files")
	own("/")
	for _, c := range "azAZ09-._~!$'()*,:@" {
		own("/u/a" + string(c) + "%ffb/pay")
		other := unknown
		if !strings.ContainsRune("!$'()*,:@", c) {
			other = again
		}
		other(fmt.Sprintf("/u/a%%%02X%%ffb/pay", c))
		other(fmt.Sprintf("/u/a%%%02x%%FFb/pay", c))
		unknown(fmt.Sprintf("/u/a%%%02x%%FFb/pay/", c))
	}
	own("/u/a:b%2Cc/pay")
	unknown("/u/a%3Ab,c/pay") // both are written in another way than most
	for _, c := range ";/?#+=&" {
		own(fmt.Sprintf("/u/a%%%02Xb/pay", c))
	}
	for _, c := range ";/+=&" {
		own("/u/a" + string(c) + "b/pay")
	}
	own("/u/a%253Ab/pay")
}
