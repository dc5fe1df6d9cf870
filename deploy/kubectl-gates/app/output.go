package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"
)

// format is the value of -o: empty for people, or one of those allowed.
type format struct {
	value   string
	allowed []string
}

// The formats of -o.
const (
	formatJSON = "json"
	formatYAML = "yaml"
	formatName = "name"
)

var _ pflag.Value = (*format)(nil)

// addFlag adds -o.
func (f *format) addFlag(flags *pflag.FlagSet, allowed ...string) {
	f.allowed = allowed
	flags.VarP(f, "output", "o", "Output format. One of: ("+strings.Join(allowed, ", ")+").")
}

// String implements pflag.Value.
func (f *format) String() string { return f.value }

// Type implements pflag.Value.
func (f *format) Type() string { return "string" }

// Set implements pflag.Value.
func (f *format) Set(value string) error {
	if !slices.Contains(f.allowed, value) {
		return fmt.Errorf("must be one of %s", strings.Join(f.allowed, ", "))
	}
	f.value = value
	return nil
}

// forMachines tells whether a message is to be printed as it is.
func (f *format) forMachines() bool { return f.value == formatJSON || f.value == formatYAML }

// print prints a message of the gates as it is, in JSON or YAML.
func (f *format) print(out io.Writer, message proto.Message) error {
	content, err := protojson.Marshal(message)
	if err != nil {
		return err
	}
	return f.printJSON(out, content)
}

// printJSON prints JSON, well indented or as YAML.
func (f *format) printJSON(out io.Writer, content []byte) error {
	if f.value == formatYAML {
		content, err := yaml.JSONToYAML(content)
		if err != nil {
			return err
		}
		_, err = out.Write(content)
		return err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, content, "", "    "); err != nil {
		return err
	}
	indented.WriteByte('\n')
	_, err := out.Write(indented.Bytes())
	return err
}

// printLine prints JSON in one line.
func (f *format) printLine(out io.Writer, content []byte) error {
	var line bytes.Buffer
	if err := json.Compact(&line, content); err != nil {
		return err
	}
	line.WriteByte('\n')
	_, err := out.Write(line.Bytes())
	return err
}

// style is how a text looks on a terminal.
type style string

// The styles, as ECMA-48 has them.
const (
	plain  style = ""
	good   style = "\x1b[32m"
	bad    style = "\x1b[31m"
	strong style = "\x1b[1m"
	hunk   style = "\x1b[36m"
	reset        = "\x1b[0m"
)

// page prints text for people. What others have chosen, the names of objects, say,
// cannot take over the terminal. The first error of writing is kept, and all that
// follows is dropped.
type page struct {
	out    io.Writer
	colour bool
	err    error
}

// newPage returns a page on out, which has colours if out is a terminal.
func newPage(out io.Writer) *page {
	return &page{out: out, colour: printers.AllowsColorOutput(out)}
}

// printf prints in a style.
func (p *page) printf(s style, format string, args ...any) {
	if p.err != nil {
		return
	}
	text := fmt.Sprintf(format, args...)
	var b strings.Builder
	// Writing to a strings.Builder does not fail.
	_ = printers.WriteEscaped(&b, text)
	text = b.String()
	if p.colour && s != plain {
		// A style ends before the line does, so that a pager keeps lines apart.
		body := strings.TrimRight(text, "\n")
		text = string(s) + body + reset + text[len(body):]
	}
	_, p.err = io.WriteString(p.out, text)
}

// printWarning prints a warning as kubectl does.
func printWarning(streams genericiooptions.IOStreams, text string) {
	printers.NewWarningPrinter(streams.ErrOut, printers.WarningPrinterOptions{Color: printers.AllowsColorOutput(streams.ErrOut)}).Print(text)
}
