package main

import (
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/witness"
)

// TestReceipt gets a receipt that a witness has cosigned, and verifies it where there is no server: what it shows is
// what was written. Another key, payload or policy, and a changed file, are refused.
func TestReceipt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, text string) string {
		must.Do(t, os.WriteFile(in(name), []byte(text), 0o600))
		return in(name)
	}
	do := func(args ...string) result { return seqledger(t, append([]string{"receipt"}, args...)...) }
	// A server that has no log yet tells its id, with which the policy and the witness begin.
	const origin = "log.example/test"
	s := serve(t)
	write := append([]string{"write", "--scope", "acme/main", "--client-id", "till-7"}, "--json", "--append", "hello")
	id, _ := s.do(t, write...).expect(t, exitDone).field(t, "txId").(string)
	s.do(t, "receipt", "get", id, "-o", in("none")).expect(t, exitRefused, "serve --receipt-key")
	vkey := strings.TrimSpace(do("keygen", origin+"/"+s.ledgerID, in("key")).expect(t, exitDone).stdout)
	do("keygen", origin, in("key")).expect(t, exitFailed, "exists")
	key := must.Get(witness.NewKey(witness.WitnessKey, "witness.example"))(t)
	policy := "log " + vkey + "\nwitness w " + key.String()
	known := must.Get(witness.ParsePolicy([]byte(policy + "\nquorum w\n")))(t)
	cosigning := must.Get(witness.Open(in("witness"), key, known, slog.New(slog.DiscardHandler)))(t)
	web := httptest.NewServer(cosigning)
	t.Cleanup(func() { web.Close(); _ = cosigning.Close() })
	put("serve", policy+" "+web.URL+"\nquorum w\n")
	s.kill()
	s = serveOn(t, s.data, "127.0.0.1:0", "--receipt-key", in("key"), "--receipt-origin", origin, "--receipt-policy",
		in("serve"), "--receipt-interval", "100ms")
	s.do(t, "receipt", "get", id, "-o", in("receipt")).expect(t, exitDone)
	s.do(t, "receipt", "get", id[:len(id)-4]+"9999", "-o", in("none")).expect(t, exitRefused, "no transaction")
	put("tx", s.do(t, "tx", id, "--json").expect(t, exitDone).stdout)
	if !strings.Contains(s.stderr.String(), vkey) {
		t.Errorf("the start does not tell the public key: %s", s.stderr)
	}
	s.kill()

	verify := func(args ...string) result { return do(append([]string{"verify", in("receipt")}, args...)...) }
	put("policy", policy+"\nquorum w\n")
	put("payload", "hello")
	verify("--policy", in("policy"), "--payload", in("payload")).expect(t, exitDone, id, "acme/main", "till-7",
		"sequence", "COMMITTED", "client", "w at 20", origin+"/"+s.ledgerID, "payload hash", "committed")
	verify("--key", vkey, "--payload", in("tx")).expect(t, exitDone, "no witness: the operator")
	var shown receiptVerified
	must.Do(t, json.Unmarshal([]byte(verify("--policy", in("policy"), "--json").expect(t, exitDone).stdout), &shown))
	if !strings.Contains(string(shown.Transaction), `"clientId":"till-7"`) || len(shown.Cosigners) != 1 {
		t.Errorf("%+v", shown)
	}
	verify("--policy", in("policy"), "--payload", put("other", "hullo")).expect(t, exitFailed, "other operations")
	verify().expect(t, exitUsage, "--policy or --key")
	verify("--key", "x").expect(t, exitUsage, "--key")
	other := strings.TrimSpace(do("keygen", origin+"/0123456789abcdef", in("key2")).expect(t, exitDone).stdout)
	verify("--key", other).expect(t, exitFailed, "not to be trusted")
	put("two", policy+"\nwitness x "+must.Get(witness.NewKey(witness.WitnessKey, "x"))(t).String()+
		"\ngroup both all w x\nquorum both\n")
	verify("--policy", in("two")).expect(t, exitFailed, "quorum")
	file := string(must.Get(os.ReadFile(in("receipt")))(t))
	put("receipt", strings.Replace(file, "\nindex ", "\nindex 1", 1))
	verify("--key", vkey).expect(t, exitFailed, "do not rely on it")
}

// Flags of receipts that do not fit are refused before anything is made.
func TestReceiptFlags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	seqledger(t, "receipt", "keygen", "a", key).expect(t, exitDone)
	for says, args := range map[string][]string{
		"no line is that": {"--receipt-key", key, "--receipt-origin", "a", "--receipt-policy",
			writeFile(t, "p", "quorum none\n")},
		"go together":     {"--receipt-key", key},
		"with them":       {"--receipt-policy", key},
		"without spaces":  {"--receipt-key", key, "--receipt-origin", "a b"},
		"100ms":           {"--receipt-key", key, "--receipt-origin", "a", "--receipt-interval", "1ms"},
		"no such file":    {"--receipt-key", key + "2", "--receipt-origin", "a"},
		"--receipt-polic": {"--receipt-key", key, "--receipt-origin", "a", "--receipt-policy", key},
	} {
		data := filepath.Join(dir, "data")
		seqledger(t, append([]string{"serve", "--data", data}, args...)...).expect(t, exitUsage, says)
		if _, err := os.Stat(data); err == nil {
			t.Fatal("a directory was made")
		}
	}
}
