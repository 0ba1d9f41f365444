package witness_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	formatslog "github.com/transparency-dev/formats/log"
	formats "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/witness"
)

const (
	origin = "ledger.example/0123"
	text   = origin + "\n7\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
)

func newKey(t testing.TB, kind witness.Kind, name string) *witness.Key {
	t.Helper()
	return must.Get(witness.NewKey(kind, name))(t)
}

// created returns the content of a key's file, without its newline.
func created(t *testing.T, kind witness.Kind, k *witness.Key) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	must.Do(t, k.Create(path))
	check.Equal(t, must.Get(os.Stat(path))(t).Mode().Perm(), 0o600)
	check.Is(t, k.Create(path), os.ErrExist, "a key was overwritten")
	again := must.Get(witness.ReadKey(path, kind))(t)
	check.Equal(t, again.String(), k.String())
	other := witness.LogKey + witness.WitnessKey - kind
	check.ErrorContains(t, check.Err(witness.ReadKey(path, other)), "logs and witnesses have different keys")
	return strings.TrimSuffix(string(must.Get(os.ReadFile(path))(t)), "\n")
}

// A key of a log, its file and its signatures are those of package note.
func TestLogKey(t *testing.T) {
	t.Parallel()
	key := newKey(t, witness.LogKey, origin)
	signer := must.Get(note.NewSigner(created(t, witness.LogKey, key)))(t)
	verifier := must.Get(note.NewVerifier(key.String()))(t)
	ours := must.Get(witness.ParseKey(key.String()))(t)
	signed := must.Get(note.Sign(&note.Note{Text: text}, key))(t)
	check.Equal(t, string(signed), string(must.Get(note.Sign(&note.Note{Text: text}, signer))(t)))
	for _, v := range []note.Verifier{verifier, ours, key} {
		check.Equal(t, len(must.Get(note.Open(signed, note.VerifierList(v)))(t).Sigs), 1)
	}
	renamed := key.As("ledger.example/4567")
	check.Equal(t, renamed.Name(), "ledger.example/4567")
	_, err := note.Open(must.Get(note.Sign(&note.Note{Text: text}, renamed))(t), note.VerifierList(ours))
	check.ErrorContains(t, err, "no verifiable signatures")
}

// A witness's key, its file and its cosignatures are those of transparency-dev/formats, in both directions.
func TestWitnessKey(t *testing.T) {
	t.Parallel()
	key := newKey(t, witness.WitnessKey, "witness.example/w1")
	theirSigner := must.Get(formats.NewSignerForCosignatureV1(created(t, witness.WitnessKey, key)))(t)
	theirs := must.Get(formats.NewVerifierForCosignatureV1(key.String()))(t)
	ours := must.Get(witness.ParseKey(key.String()))(t)
	for _, signer := range []note.Signer{key, theirSigner} {
		before := time.Now().Unix()
		signed := must.Get(note.Sign(&note.Note{Text: text}, signer))(t)
		for _, v := range []note.Verifier{theirs, ours} {
			n := must.Get(note.Open(signed, note.VerifierList(v)))(t)
			at := must.Get(formats.CoSigV1Timestamp(n.Sigs[0]))(t).Unix()
			check.Equal(t, at >= before && at <= time.Now().Unix(), true, "%d: %v", at)
		}
	}
}

// A cosignature is bound to its time and its text, and to one key.
func TestCosignature(t *testing.T) {
	t.Parallel()
	key := newKey(t, witness.WitnessKey, "w")
	good := must.Get(key.Sign([]byte(text)))(t)
	check.Equal(t, key.Verify([]byte(text), good), true)
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 1
		check.Equal(t, key.Verify([]byte(text), bad), false, "byte %d: %v", i)
	}
	check.Equal(t, key.Verify([]byte(text+"x\n"), good), false)
	check.Equal(t, key.Verify([]byte(text), good[:len(good)-1]), false)
	check.Equal(t, newKey(t, witness.WitnessKey, "w").Verify([]byte(text), good), false)
	// A log's signature is no cosignature, and the other way round, of the same key.
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	public := func(kind witness.Kind) *witness.Key {
		b := append([]byte{byte(kind)}, private.Public().(ed25519.PublicKey)...)
		v := must.Get(note.NewEd25519VerifierKey("w", private.Public().(ed25519.PublicKey)))(t)
		if kind == witness.WitnessKey {
			v = must.Get(formats.VKeyToCosignatureV1(v))(t)
		}
		check.Contains(t, v, base64.StdEncoding.EncodeToString(b))
		return must.Get(witness.ParseKey(v))(t)
	}
	check.Equal(t, public(witness.WitnessKey).Verify([]byte(text), ed25519.Sign(private, []byte(text))), false)
	// Times of no cosignature.
	for _, at := range []uint64{0, 1 << 63, 1<<64 - 1} {
		signature := append(binary.BigEndian.AppendUint64(nil, at),
			ed25519.Sign(private, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", at, text))...)
		check.Equal(t, public(witness.WitnessKey).Verify([]byte(text), signature), false, "at %d: %v", at)
	}
}

// The example of signed-note, a vkey and the note that it verifies.
func TestSignedNoteExample(t *testing.T) {
	t.Parallel()
	v := must.Get(witness.ParseKey("example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"))(t)
	const signed = "This is an example message.\n\n— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlT" +
		"gK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
	must.Get(note.Open([]byte(signed), note.VerifierList(v)))(t)
}

func TestKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	// The key of a real witness.
	const good = "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2"
	must.Get(witness.ParseKey(good))(t)
	_, mldsa, err := formats.GenerateMLDSAKey("w")
	must.Do(t, err)
	for bad, says := range map[string]string{
		"": "with + between", "w": "with + between", "w+00000000": "with + between", good + "=": "with + between",
		good + "\n":                                  "does not fit",
		strings.Replace(good, "da", "DA", 1):         "does not fit",
		strings.Replace(good, "da77", "da78", 1):     "does not fit",
		strings.Replace(good, ".de", ".com", 1):      "does not fit",
		strings.TrimPrefix(good, "remora.n621.de"):   "the name",
		strings.Replace(good, "n621", "n 621", 1):    "the name",
		strings.Replace(good, "n621", "n\xff621", 1): "the name",
		strings.Replace(good, "BOvN", "AuvN", 1):     "type 0x02",
		strings.TrimSuffix(good, "mtw2"):             "29 bytes",
		mldsa:                                        "1312 bytes of the signature type 0x06",
	} {
		check.ErrorContains(t, check.Err(witness.ParseKey(bad)), says, "%q", bad)
	}
	skey := created(t, witness.WitnessKey, newKey(t, witness.WitnessKey, "w"))
	secret := strings.SplitN(skey, "+", 5)[4]
	renamed := strings.Replace(skey, "+w+", "+v+", 1)
	for _, bad := range []string{skey[1:], skey[:len(skey)-5], renamed, skey + "\n", "PRIVATE+KEY+" + good} {
		err := check.Err(witness.ParseKey(bad))
		check.Equal(t, err == nil || strings.Contains(err.Error(), secret[:20]), false, "%q: %v: %v", bad, err)
	}
	public := filepath.Join(t.TempDir(), "public")
	must.Do(t, os.WriteFile(public, []byte(good+"\n"), 0o600))
	check.ErrorContains(t, check.Err(witness.ReadKey(public, witness.WitnessKey)), public+": is a public key")
	check.ErrorContains(t, check.Err(witness.NewKey(witness.LogKey, "a b")), "the name")
	// A key that is printed shows its public half.
	key := must.Get(witness.ParseKey(skey))(t)
	check.Equal(t, strings.Contains(fmt.Sprint(key), secret[:20]), false)
}

// A checkpoint is read and written as transparency-dev/formats does.
func TestCheckpoint(t *testing.T) {
	t.Parallel()
	c := must.Get(witness.ParseCheckpoint(text))(t)
	var theirs formatslog.Checkpoint
	must.Get(theirs.Unmarshal([]byte(text)))(t)
	check.Equal(t, c.String(), text)
	check.Equal(t, string(theirs.Marshal()), text)
	check.Equal(t, c, must.Get(witness.ParseCheckpoint(text+"an extension\n"))(t))
	for bad, says := range map[string]string{
		"": "must have lines", "\n\n\n": "must have lines", strings.TrimSuffix(text, "\n"): "must have lines",
		text + "\n": "no empty line", text + "\nx\n": "no empty line",
		strings.Replace(text, "\n7\n", "\n07\n", 1):                   "the size",
		strings.Replace(text, "\n7\n", "\n+7\n", 1):                   "the size",
		strings.Replace(text, "\n7\n", "\n-7\n", 1):                   "the size",
		strings.Replace(text, "\n7\n", "\n4611686018427387905\n", 1):  "the size", // 1<<62 + 1
		strings.Replace(text, "\n7\n", "\n18446744073709551615\n", 1): "the size",
		strings.Replace(text, "q2I=", "q2J=", 1):                      "the hash", // bits that say nothing
		strings.Replace(text, "q2I=", "q2Iq", 1):                      "the hash",
		strings.Replace(text, "CsUY", "CsU\r", 1):                     "the hash",
	} {
		check.ErrorContains(t, check.Err(witness.ParseCheckpoint(bad)), says, "%q", bad)
	}
}

func FuzzKey(f *testing.F) {
	f.Add("PRIVATE+KEY+w+f8a8d1a4+BAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k")
	f.Add("remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2")
	f.Fuzz(func(t *testing.T, text string) {
		key, err := witness.ParseKey(text)
		if err != nil {
			return
		}
		// What is taken here is taken by others.
		must.Get(formats.NewVerifierForCosignatureV1(key.String()))(t)
		if strings.HasPrefix(text, "PRIVATE+KEY+") {
			must.Get(formats.NewSignerForCosignatureV1(text))(t)
		} else {
			check.Equal(t, key.String(), text)
		}
	})
}

func FuzzCheckpoint(f *testing.F) {
	f.Add(text)
	f.Add(text + "more\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := witness.ParseCheckpoint(text)
		if err != nil {
			return
		}
		check.Equal(t, strings.HasPrefix(text, c.String()), true)
		var theirs formatslog.Checkpoint
		must.Get(theirs.Unmarshal([]byte(text)))(t)
		check.Equal(t, string(theirs.Marshal()), c.String())
	})
}
