// Package verified runs plugwright verify inside go test: each verdict is a subtest.
//
// Copy this file into your plugin's module and set the command. PLUGIN is the command here, so that the example works
// as it is: PLUGIN='./my-plugin --plugin-dir {dir}' go test ./...
package verified

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

type verdict struct {
	Rule, Kubelet, Status, Title, Expected, Seen, Why, Fix, Page string

	Known     bool
	Reason    string
	DependsOn string `json:"depends_on"`
	Calls     []string
	Output    []string
}

type report struct {
	Outcome  string
	Verified bool
	Verdicts []verdict
}

func TestContractWithTheKubelet(t *testing.T) {
	plugin := os.Getenv("PLUGIN")
	if plugin == "" {
		t.Skip("PLUGIN is not set: the command of the plugin, such as ./my-plugin --plugin-dir {dir}")
	}
	plugwright, err := exec.LookPath("plugwright")
	if err != nil {
		t.Skip("plugwright is not installed: pip install plugwright")
	}
	arguments := append([]string{"verify", "--output", "json"}, strings.Fields(os.Getenv("VERIFY_FLAGS"))...)
	command := exec.Command(plugwright, append(append(arguments, "--"), strings.Fields(plugin)...)...)
	command.Stderr = os.Stderr // a line for each rule as it ends
	output, err := command.Output()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	var made report
	if err := json.Unmarshal(output, &made); err != nil {
		t.Fatalf("plugwright verify wrote no report: %v", err)
	}
	for _, one := range made.Verdicts {
		t.Run(one.Rule+"@"+one.Kubelet, func(t *testing.T) { show(t, one) })
	}
	if !made.Verified {
		t.Error("nothing was verified")
	}
}

func show(t *testing.T, one verdict) {
	switch {
	case one.Known:
		t.Skipf("known: %s; seen %s", one.Reason, one.Seen)
	case one.Status == "fail" || one.Status == "error":
		t.Errorf("%s\nexpected %s\nseen %s\n%s\nwhy %s\nfix %s\n%s", one.Title, one.Expected, one.Seen,
			strings.Join(append(one.Calls, one.Output...), "\n"), one.Why, one.Fix, one.Page)
	case one.Status == "warning":
		t.Logf("warning: %s: expected %s, seen %s. %s", one.Title, one.Expected, one.Seen, one.Fix)
	case one.Status == "not checked":
		t.Skipf("not checked: %s failed", one.DependsOn)
	case one.Status == "not applicable":
		t.Skipf("not applicable: %s", one.Seen)
	}
}
