package main

import (
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/internal/storeurl"
)

type storeCommand struct {
	Init storeInitCommand `cmd:"" help:"Make the tables of a store of keys in a database."`
}

type storeInitCommand struct {
	URL   string `arg:"" help:"The store, as for --store of gateway." env:"SEQLEDGER_STORE"`
	Print bool   `help:"Only print the statements, for those who run them by hand." env:"-"`
}

func (*storeInitCommand) Help() string {
	return `It may be run again: what is there stays as it is. The role that runs it owns the tables; the role that uses them
needs less, which is printed.

    seqledger store init postgres://owner@db.example.com/shop
    seqledger gateway --upstream http://127.0.0.1:8080 --store postgres://app@db.example.com/shop`
}

func (c *storeInitCommand) Run(e *environment) error {
	if err := storeurl.Check(c.URL); err != nil {
		return usage("%w", err)
	}
	var text string
	var err error
	if c.Print {
		text, err = storeurl.Statements(c.URL)
	} else {
		text, err = storeurl.Init(e.ctx, c.URL)
	}
	switch {
	case errors.Is(err, storeurl.ErrNothingToInit):
		return fail(exitRefused, "use it as it is", "%w", err)
	case err != nil:
		return fail(exitFailed, "does the store answer, and may the role in the URL make tables there?", "%w", err)
	}
	return e.showStatements(text)
}

// showStatements prints statements for a database.
func (e *environment) showStatements(text string) error {
	if e.json {
		return e.showObject(map[string]string{"statements": text})
	}
	_, err := fmt.Fprint(e.stdout, text)
	return err
}
