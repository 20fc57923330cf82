// Package ledger holds the C header of the ledgers of package ib, which its tests include as well.
// The header is the substance of the package. A package that includes it imports this one, and
// package verbs, whose header it includes.
package ledger

import "embed"

// Embedding the header makes the go command rebuild the packages that include it.
//
//go:embed *.h
var headers embed.FS

var _ = headers
