//go:build tools

// Package h2spec pins the program that `make h2spec` builds.
package h2spec

import _ "github.com/summerwind/h2spec/cmd/h2spec"
