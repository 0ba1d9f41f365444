package server

import (
	"bytes"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// allRequests are the messages that clients send. TestAllRequests finds one that
// is missing.
var allRequests = []proto.Message{
	(*seqledgerv1.WriteRequest)(nil), (*seqledgerv1.OpenSessionRequest)(nil), (*seqledgerv1.GetClientStateRequest)(nil),
	(*seqledgerv1.GetEntityRequest)(nil), (*seqledgerv1.ListEntitiesRequest)(nil),
	(*seqledgerv1.ListRelationshipsRequest)(nil),
	(*seqledgerv1.GetTransactionRequest)(nil), (*seqledgerv1.GetBlockRequest)(nil), (*seqledgerv1.ListBlocksRequest)(nil),
	(*seqledgerv1.WatchRequest)(nil), (*seqledgerv1.GetStatusRequest)(nil), (*seqledgerv1.ListClientsRequest)(nil),
	(*seqledgerv1.UpdateConfigRequest)(nil), (*seqledgerv1.BackupRequest)(nil),
}

// A request that is new in the API must be fuzzed like the others.
func TestAllRequests(t *testing.T) {
	t.Parallel()
	known := make(map[string]bool)
	for _, m := range allRequests {
		known[string(m.ProtoReflect().Descriptor().FullName())] = true
	}
	known["seqledger.v1.WriteStreamRequest"] = true // FuzzFrame and FuzzHotPath have it
	for _, service := range []string{"LedgerService", "AdminService"} {
		file := seqledgerv1.File_seqledger_v1_ledger_proto
		if service == "AdminService" {
			file = seqledgerv1.File_seqledger_v1_admin_proto
		}
		methods := file.Services().ByName(protoreflect.Name(service)).Methods()
		for i := range methods.Len() {
			if name := string(methods.Get(i).Input().FullName()); !known[name] {
				t.Errorf("%s is not in allRequests", name)
			}
		}
	}
}

// FuzzRequests: a request of any kind that one of the two encodings can say is
// taken in the other one, too, and means the same. What is refused is so with a
// mistake that can be sent in an answer.
func FuzzRequests(f *testing.F) {
	write, err := proto.Marshal(everything())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint8(0), write)
	for i, text := range []string{
		`{"scope":{"organization":"a"},"clientId":"c","attemptId":"AAAAAAAAAAAAAAAAAAAAAA==","expected_session":"7"}`,
		`{"scope":{"organization":"a","vault":"v"},"client_id":"c","includeReceipts":true}`,
		`{"scope":{},"key":"\u00e9"}`, `{"pageSize":10,"pageToken":"AQ"}`, `{"resource":"r","relation":"l"}`,
		`{"txId":"x","includeProof":true}`, `{"height":"18446744073709551615"}`, `{"fromHeight":1,"pageSize":-1}`,
		`{"fromIndex":"1"}`, `{}`, `{"scope":null}`, `{"clientTtl":"1.5s","evictionLimit":"3"}`, `{"x":1}`,
	} {
		f.Add(uint8(i+1), []byte(text))
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		kind := allRequests[int(which)%len(allRequests)].ProtoReflect().Type()
		for name, decode := range decoders {
			m := kind.New().Interface()
			if err := decode(data, m); err != nil {
				field, ok := errors.AsType[*machine.FieldError](err)
				if !ok || !utf8.ValidString(field.Error()) ||
					strings.ContainsRune(field.Problem, utf8.RuneError) && !bytes.ContainsRune(data, utf8.RuneError) {
					t.Errorf("%s: %T %q is no answer", name, err, err)
				}
				continue
			}
			binary, err := proto.Marshal(m)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			again := kind.New().Interface()
			if err := decodeBinary(binary, again); err != nil || !proto.Equal(m, again) {
				t.Errorf("%s: %v is written and read as %v, %v", name, m, again, err)
			}
			text, err := protojson.Marshal(m)
			if err != nil {
				continue // a time that JSON has no text for
			}
			again = kind.New().Interface()
			if err := decodeJSON(text, again); err != nil || !proto.Equal(m, again) {
				t.Errorf("%s: %v is in JSON %s, which reads as %v, %v", name, m, text, again, err)
			}
		}
	})
}

// FuzzHotPath: the fast check of writes and frames accepts exactly what the slow one accepts,
// which explains what is wrong.
func FuzzHotPath(f *testing.F) {
	some := &seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{everything(), {}, {ClientId: "c"}}}
	for _, m := range []proto.Message{everything(), some, &seqledgerv1.WriteStreamRequest{}} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(append(data, 0x10, 1))
	}
	f.Add([]byte{0x0a, 0x80, 0x00})       // a length that is longer than it needs to be
	f.Add([]byte{0x12, 1, 'a', 0x12, 0})  // client_id twice
	f.Add([]byte{0x32, 2, 0x0b, 0x0c})    // a group
	f.Add([]byte{0x8a, 0x80, 0x00, 0x00}) // a tag that is longer than it needs to be
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(seqledgerv1.WriteRequest)
		decodes := proto.Unmarshal(data, m) == nil
		problem := explainBinary(m.ProtoReflect().Descriptor(), data, "")
		if fast, slow := decodes && writeShape.fits(data), decodes && problem == nil; fast != slow {
			t.Errorf("a write of %x: the fast look says %v, the slow one %v", data, fast, problem)
		}
		fits := frameShape.fits(data)
		whole := new(seqledgerv1.WriteStreamRequest)
		fast := fits && proto.Unmarshal(data, whole) == nil
		parts, err := splitBinary(data)
		slow := new(frame)
		slow.decodeEach(parts, err, func(part []byte, w *seqledgerv1.WriteRequest) error {
			if problem := explainBinary(w.ProtoReflect().Descriptor(), part, ""); problem != nil {
				return problem
			}
			return proto.Unmarshal(part, w)
		})
		if good := slow.invalid == nil && len(slow.bad) == 0; good != fast {
			t.Fatalf("a frame of %x: the fast look says %v, the slow one %v and %v", data, fast, slow.invalid, slow.bad)
		}
		if fast && !proto.Equal(whole, &seqledgerv1.WriteStreamRequest{Writes: slow.writes}) {
			t.Errorf("a frame of %x is %v, write by write %v", data, whole, slow.writes)
		}
		if fast && slow.operations != countOperations(whole.Writes) {
			t.Errorf("%d operations were counted, there are %d", slow.operations, countOperations(whole.Writes))
		}
	})
}

// FuzzLoopbackHost: a Host that is taken for this machine is so for a URL's
// reader, too, whatever is written around it.
func FuzzLoopbackHost(f *testing.F) {
	for _, host := range []string{
		"localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3:7450", "[::1]:80", "[::1]",
		"::1", "[::1%25lo]:80", "[::ffff:127.0.0.1]",
		"localhost.", "127.0.0.1.example.org", "example.org:127", "localhost:80:80",
		"[localhost]", "[127.0.0.1]:1", "0x7f.1", "",
	} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if !loopbackHost(host) {
			return
		}
		name := strings.ToLower(host)
		if u, err := url.Parse("http://" + host); err == nil && u.User == nil {
			name = strings.ToLower(u.Hostname())
		} else if h, _, err := net.SplitHostPort(name); err == nil {
			name = h
		}
		name = strings.Trim(name, "[]")
		if ip := net.ParseIP(name); name != "localhost" && (ip == nil || !ip.IsLoopback()) {
			t.Errorf("%q was taken for this machine", host)
		}
	})
}
