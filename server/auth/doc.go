// Package auth authenticates the callers of a ledger server and decides what they may do.
//
//	a, err := auth.Open("auth.yaml", auth.Options{Logger: logger})
//	credential, err := a.Authenticate(request.Header) // 401 when it fails
//	err = credential.Write(scope, clientID)           // 403 when it fails
//	err = a.Reload()                                  // on SIGHUP
//
// An auth file names API keys and the issuer of session tokens (JWT). Both end as a
// [Credential]: an actor, a [Grant] and limits, which package admission enforces.
// testdata/auth.yaml is a complete file with explanations.
//
// # API keys
//
// A key is sl_<id>_<secret>. The secret is 256 random bits, and the file has the SHA-256 of the whole key. A slow hash
// such as bcrypt protects secrets that can be guessed. These cannot, so it would only let unauthenticated callers keep
// the server busy. The hash is found by the id, which is not secret, and compared in constant time. For an unknown id a
// comparison takes place too, so the time does not reveal which ids exist.
//
// # Scopes
//
// A scope pattern is one of these:
//
//   - "*" alone: every scope. Only this is "every scope" where a call needs it.
//   - "organization": organizations themselves, and none of their vaults.
//   - "organization/vault": vaults, and not the organization itself.
//
// In each part "*" matches any run of characters of that part, the empty one and slashes included, so that "acme/*" is
// every vault of acme and "*/*" every vault. The first and only slash divides the parts; a slash in a name is written
// %2F.
//
// # Client ids
//
// In a pattern for client ids "*" matches any run of characters, and every other character itself.
//
// # Roles
//
// A reader sees the entities, relationships, transactions and blocks of its scopes. A writer may also write and open
// sessions, under a client id that matches. An admin is a writer that may also make calls about the whole ledger, if
// its scopes have "*". Every role whose client ids match may read the state of a stream. Everything else is denied.
//
// # Life of a credential
//
// [Authority.Reload] reads all files again, and uses the new ones completely or not at all. A key whose entry is the
// same stays valid; one that is removed or changed ends, and so do all tokens if the section tokens changes.
// [Credential.Ended] notifies handlers of open streams, because a stream lasts longer than the authentication of its
// caller.
package auth
