// Package readme runs every command of README.md as it is written there.
package readme

import (
	"fmt"
	"regexp"
	"strings"
)

// command is a command of README.md.
type command struct {
	// section is the heading above it.
	section string
	// line is where it is, from one.
	line int
	// text is what a reader types.
	text string
	// output is what the README shows below it, … standing for any text. Empty if it
	// shows nothing.
	output string
}

// name is the command for people.
func (c *command) name() string { return fmt.Sprintf("line %d: %s", c.line, c.text) }

// parse returns the commands in the console blocks of a Markdown text. A command that
// ends with a backslash goes on in the next line.
func parse(markdown string) ([]command, error) {
	var commands []command
	section, block, continued := "", "", false
	for i, line := range strings.Split(markdown, "\n") {
		if language, isFence := strings.CutPrefix(line, "```"); isFence {
			if block != "" {
				language = ""
			} else if language == "" {
				language = "text"
			}
			block, continued = language, false
			continue
		}
		text, isCommand := strings.CutPrefix(line, "$ ")
		switch last := len(commands) - 1; {
		case block == "":
			if heading, ok := strings.CutPrefix(line, "## "); ok {
				section = heading
			}
		case block != "console":
			if isCommand {
				return nil, fmt.Errorf("line %d has a command, but not in a console block: it would not be run", i+1)
			}
		case continued:
			commands[last].text += "\n" + line
			continued = strings.HasSuffix(line, `\`)
		case isCommand:
			commands = append(commands, command{section: section, line: i + 1, text: text})
			continued = strings.HasSuffix(text, `\`)
		case last < 0 || commands[last].section != section:
			return nil, fmt.Errorf("line %d is output of no command", i+1)
		default:
			commands[last].output += line + "\n"
		}
	}
	if block != "" {
		return nil, fmt.Errorf("the last %s block has no end", block)
	}
	return commands, nil
}

// comment is what a command line has for the reader only.
var comment = regexp.MustCompile(`\s+# .*$`)

// words are those of a command line, without its comment.
func (c *command) words() []string { return strings.Fields(comment.ReplaceAllString(c.text, "")) }

// shows tells whether output is what the README shows. Spaces at the end do not count.
func (c *command) shows(output string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(c.output)), "…", ".*")
	return regexp.MustCompile(`(?s)^` + pattern + `$`).MatchString(strings.TrimSpace(output))
}
