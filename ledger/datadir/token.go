package datadir

import (
	"errors"
	"io/fs"
	"os"
	"strings"
)

// TokenName is the name of the file with the join token of the node's cluster.
const TokenName = "JOIN-TOKEN"

// JoinToken returns the join token of the node's cluster; empty if the directory has none.
func (d *Directory) JoinToken() (string, error) {
	content, err := os.ReadFile(d.file(TokenName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(content)), err
}

// JoinTokenFile returns the path of the file with the join token.
func (d *Directory) JoinTokenFile() string { return d.file(TokenName) }

// SetJoinToken stores the join token, for the owner of the directory alone.
func (d *Directory) SetJoinToken(token string) error {
	return d.writeFile(TokenName, []byte(token+"\n"))
}
