package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	"github.com/seqledger/seqledger/server/admission"
	"github.com/seqledger/seqledger/server/auth"
)

type authCommand struct {
	NewKey newKeyCommand    `cmd:"" name:"new-key" help:"Make an API key."`
	Check  authCheckCommand `cmd:"" help:"Check an auth file, or show the permissions of a credential."`
}

type newKeyCommand struct {
	ID       string   `name:"id" help:"Name of the key; writes made with it have the actor client:ID." required:"" env:"-" placeholder:"ID"`
	Scope    []string `help:"Scopes: ORG or ORG/VAULT, where * matches any run of characters, or * for all; repeatable." required:"" env:"-" sep:"none" placeholder:"PATTERN"`
	ClientID []string `name:"client-id" help:"Client ids that it may write as, where * matches any run of characters; repeatable." env:"-" sep:"none" placeholder:"PATTERN"`
	Role     string   `help:"reader, writer, delegate or admin." required:"" env:"-" enum:"reader,writer,delegate,admin" placeholder:"ROLE"`
	Expires  string   `help:"When it ends, such as 2027-01-31T00:00:00Z. Default: never." env:"-" placeholder:"RFC3339"`
	Append   string   `help:"Append it to this auth file, which is created if absent." type:"path" env:"-" placeholder:"FILE"`
}

func (*newKeyCommand) Help() string {
	return `The key is printed once, on standard output, and kept nowhere: the file has a hash of it alone. Without
--append, what belongs into the file is printed too. A server takes a changed file on SIGHUP. Mind that the
pattern till-7* is for till-70, too.

    seqledger auth new-key --id till-7 --scope acme/main --client-id till-7 --role writer
    seqledger auth new-key --id report --scope '*' --role reader --append auth.yaml > report.key`
}

// newKeyResult is the answer with --json.
type newKeyResult struct {
	ID    string `json:"id"`
	Key   string `json:"key"`
	Entry string `json:"entry,omitempty"` // YAML; empty when it was appended
}

func (c *newKeyCommand) Run(e *environment) error {
	key, hash, err := auth.NewKey(c.ID)
	if err != nil {
		return usage("--id %w", err)
	}
	if err := c.checkExpires(); err != nil {
		return err
	}
	entry := &auth.Entry{ID: c.ID, Hash: hash, Role: c.Role, Scopes: c.Scope, ClientIDs: c.ClientID, Expires: c.Expires}
	if err := entry.Validate(); err != nil {
		return usage("%s", flagOfField(err.Error()))
	}
	result := newKeyResult{ID: c.ID, Key: key}
	if c.Append != "" {
		if err := appendKey(c.Append, entry); err != nil {
			return err
		}
		e.notice("added %s to %s; a server takes it on SIGHUP", c.ID, c.Append)
	} else if result.Entry, err = entry.YAML(); err != nil {
		return err
	}
	err = c.show(e, &result)
	if err != nil && c.Append != "" {
		hint := "remove the entry " + c.ID + " from the file and run it again: the key itself is not stored anywhere"
		return fail(exitFailed, hint, "the key was added to %s, but could not be shown: %w", c.Append, err)
	}
	return err
}

// show prints the key.
func (c *newKeyCommand) show(e *environment, r *newKeyResult) error {
	if e.json {
		return e.showObject(r)
	}
	_, err := fmt.Fprintln(e.stdout, r.Key)
	if err == nil && r.Entry != "" {
		_, err = fmt.Fprintf(e.stdout, "\n# For the auth file, under the keys that it has:\n%s", r.Entry)
	}
	return err
}

// checkExpires refuses a time in the past.
func (c *newKeyCommand) checkExpires() error {
	if c.Expires == "" {
		return nil
	}
	at, err := operation.ParseTime(c.Expires)
	switch {
	case err != nil:
		return usage("--expires: %w", err)
	case at.AsTime().Before(time.Now()):
		return usage("--expires %s: is in the past, and the key could never be used", c.Expires)
	}
	return nil
}

// flagOfField replaces the auth file's field name at the beginning of a message by the flag.
func flagOfField(message string) string {
	flags := map[string]string{"scopes ": "--scope ", "client_ids ": "--client-id ", "expires ": "--expires "}
	for field, flag := range flags {
		if rest, found := strings.CutPrefix(message, field); found {
			return flag + rest
		}
	}
	return message
}

// appendKey changes the file atomically.
func appendKey(path string, entry *auth.Entry) error {
	// Change the target of a link, not the link.
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if err := checkParent("--append", path); err != nil {
		return err
	}
	before, err := os.ReadFile(path)
	info, statErr := os.Stat(path) // also fails if there is no file
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return usage("--append: %w", err)
	}
	after, err := auth.AppendKey(path, before, entry)
	if err != nil {
		return authFileError(err)
	}
	if statErr != nil {
		info = nil
	}
	return replaceFile(path, before, after, info)
}

// replaceFile replaces the content of a file, unless another process has changed it since it
// was read. It keeps mode and owner of info, because the server may run as another user. A nil
// info means that there was no file.
func replaceFile(path string, before, after []byte, info fs.FileInfo) (err error) {
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temporary.Name()))
		}
	}()
	mode := fs.FileMode(0o600)
	if info != nil {
		mode = info.Mode().Perm()
		if err := keepOwner(temporary, info); err != nil {
			return errors.Join(fmt.Errorf("cannot keep the owner of %s: run it as the owner or as root: %w",
				path, err), temporary.Close())
		}
	}
	_, err = temporary.Write(after)
	err = errors.Join(err, temporary.Chmod(mode), temporary.Sync(), temporary.Close())
	if err != nil {
		return err
	}
	// Read as late as possible, because another process may have added a key since.
	now, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !bytes.Equal(now, before) {
		return fmt.Errorf("another process changed %s at the same time; run it again", path)
	}
	return os.Rename(temporary.Name(), path)
}

type authCheckCommand struct {
	File  string `arg:"" help:"The auth file." type:"path"`
	Key   string `help:"API key whose rights to explain; - reads it from standard input." env:"-" placeholder:"KEY"`
	Token string `help:"Session token whose rights to explain; - reads it from standard input." env:"-" placeholder:"TOKEN"`
}

func (*authCheckCommand) Help() string {
	return `Mistakes are named by line and field, with exit code 2. With --key or --token it tells what the credential
may do, or why it would be refused, with exit code 3.

    seqledger auth check auth.yaml
    seqledger auth check auth.yaml --key - < till-7.key`
}

// authCheckResult is the answer with --json. Without a credential only keys is set.
type authCheckResult struct {
	Keys      int               `json:"keys"`
	Actor     string            `json:"actor,omitempty"`
	Role      string            `json:"role,omitempty"`
	Scopes    []string          `json:"scopes,omitempty"`
	ClientIDs []string          `json:"clientIds,omitempty"`
	Expires   *time.Time        `json:"expires,omitempty"`
	Limits    *admission.Limits `json:"limits,omitempty"` // in effect, defaults included
}

func (c *authCheckCommand) Run(e *environment) error {
	if c.Key != "" && c.Token != "" {
		return usage("--key and --token: give one of them")
	}
	a, err := auth.Open(c.File, auth.Options{Logger: e.log})
	if err != nil {
		return fail(exitUsage, "", "%w", err)
	}
	result := authCheckResult{Keys: a.Stats().Keys}
	if c.Key == "" && c.Token == "" {
		return e.showAuth(result)
	}
	text := c.Key + c.Token
	if text == "-" {
		content, err := io.ReadAll(io.LimitReader(e.stdin, maxTokenFile))
		if err != nil {
			return err
		}
		text = string(content)
	}
	credential, err := a.Find(strings.TrimSpace(text))
	if err != nil {
		return fail(exitRefused, "", "refused: %w", explained(err))
	}
	if wantsKey, isKey := c.Key != "", strings.HasPrefix(credential.Actor(), "client:"); wantsKey != isKey {
		return fail(exitRefused, "", "refused: this is the credential of %s, which the other flag takes",
			credential.Actor())
	}
	grant, limits := credential.Grant(), credential.Limits()
	result.Actor, result.Role = credential.Actor(), grant.Role.String()
	result.Scopes, result.ClientIDs = grant.Scopes, grant.ClientIDs
	effective := admission.WithDefaults(limits)
	result.Limits = &effective
	if expires := credential.Expires(); !expires.IsZero() {
		result.Expires = &expires
	}
	return e.showAuth(result)
}

// explained adds the cause, which a server does not tell its clients.
func explained(err error) error {
	var refused *auth.RefusedError
	if errors.As(err, &refused) && refused.Cause != nil {
		return fmt.Errorf("%s: %w", refused.Problem, refused.Cause)
	}
	return err
}

// showLimits names the limits as the auth file does.
func showLimits(t *table, l *admission.Limits) {
	for _, limit := range []struct {
		name string
		n    int
	}{
		{"requests", l.Requests}, {"requests_per_second", l.RequestsPerSecond}, {"streams", l.Streams},
		{"connections", l.Connections}, {"message_bytes", l.MessageBytes}, {"reads", l.Reads},
		{"writes_per_second", l.WritesPerSecond}, {"stored_bytes", l.StoredBytes},
		{"keys", l.Keys}, {"waiters", l.Waiters},
	} {
		text := number(uint64(limit.n))
		if limit.n == 0 {
			text = "no limit"
		}
		t.field(limit.name, text)
	}
}

func (e *environment) showAuth(r authCheckResult) error {
	return e.show(r, func(t *table) {
		t.field("keys", number(uint64(r.Keys)))
		if r.Actor == "" {
			return
		}
		t.field("actor", r.Actor)
		t.field("role", r.Role)
		t.field("scopes", strings.Join(r.Scopes, "  "))
		t.field("client ids", strings.Join(r.ClientIDs, "  "))
		if r.Expires != nil {
			t.field("expires", r.Expires.Format(time.RFC3339))
		}
		if r.Limits != nil {
			showLimits(t, r.Limits)
		}
	})
}
