package supervise

import (
	"bytes"
	"io"
	"os"
	"strings"
	"unicode"
)

const (
	// logTail is how much of the end of a log is searched for its last line.
	logTail = 8 << 10
	// maxLine is how much of that line is shown, in bytes.
	maxLine = 400
)

// lastLine returns the last line of a log that is not empty, of what was written
// after begin, made fit for a terminal; "" if there is none.
func lastLine(log *os.File, begin int64) string {
	end, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	begin = max(begin, end-logTail)
	if begin >= end {
		return ""
	}
	tail := make([]byte, end-begin)
	n, _ := log.ReadAt(tail, begin)
	lines := bytes.Split(bytes.TrimSpace(tail[:n]), []byte("\n"))
	line := lines[len(lines)-1]
	text := strings.ToValidUTF8(string(line[:min(len(line), maxLine)]), "")
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(line) > maxLine {
		text += "…"
	}
	return strings.TrimSpace(text)
}
