// Package auth knows who calls a ledger server and what he may do.
//
//	a, err := auth.Open("auth.yaml", auth.Options{Logger: logger})
//	credential, err := a.Authenticate(request.Header) // 401 when it fails
//	err = credential.Write(scope, clientID)           // 403 when it fails
//	err = a.Reload()                                  // on SIGHUP
//
// An auth file names API keys and the issuer of session tokens (JWT). Both end
// as a [Credential]: an actor, a [Grant] and limits, which package admission
// enforces. testdata/auth.yaml is a
// file with everything that there is, explained.
//
// # API keys
//
// A key is sl_<id>_<secret>. The secret is 256 random bits, and the file has the
// SHA-256 of the whole key. A slow hash such as bcrypt protects secrets that can
// be guessed; 2^256 cannot, so all that it would do is to let every stranger
// keep the server busy. The hash is found by the id, which is no secret, and
// compared in constant time; for an id that does not exist something is compared
// too, so that the time does not tell which ids there are.
//
// # Scopes
//
// A scope pattern is one of these:
//
//   - "*" alone: every scope. Only this is "every scope" where a call needs it.
//   - "organization": organizations themselves, and none of their vaults.
//   - "organization/vault": vaults, and not the organization itself.
//
// In each part "*" stands for any run of characters of that part, the empty one
// and slashes included, so that "acme/*" is every vault of acme and "*/*" every
// vault. The first and only slash divides the parts; a slash in a name is
// written %2F.
//
// # Client ids
//
// In a pattern for client ids "*" stands for any run of characters; everything
// else stands for itself.
//
// # Roles
//
// A reader sees the entities, relationships, transactions and blocks of his
// scopes. A writer may also write and open sessions, under a client id that
// matches. An admin is a writer who may also ask for what concerns the whole
// ledger, if his scopes have "*". The state of a stream is for every role whose
// client ids match. Nobody may do what is not said here.
//
// # Life of a credential
//
// [Authority.Reload] reads all files anew, and takes the new ones whole or not
// at all. A key whose entry is the same goes on; one that is gone or changed
// ends, and so do tokens when anything about them changes. [Credential.Ended]
// tells those who hold a stream open, because a stream lives longer than the
// moment in which its caller was looked at.
package auth
