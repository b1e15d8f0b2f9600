// Checks an exported log with the packages that Go's module mirror is checked with, and nothing of Manta's: the note's signature
// (sumdb/note), every entry under the signed root, proofs of inclusion, and that an older tree head, if one is given, is of the same history (tlog).
// Witnesses' cosignatures (C2SP tlog-cosignature, which x/mod does not know) are opened by the same note package, with a verifier of Go's own
// crypto/ed25519 for each line that names its key; those in the file "witnessed" have to be of the same history, too.
//
//	manta-aggregator ledger export FOLDER --dir DIR
//	GO111MODULE=off GOPATH=/usr/share/gocode go run benchmarks/tlog/main.go FOLDER [OLDER_CHECKPOINT]
//
// Debian has both: golang-go and golang-golang-x-mod-dev.
package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const height = 8

// files reads tiles of an exported log.
type files struct{ folder string }

func (f files) Height() int                     { return height }
func (f files) SaveTiles([]tlog.Tile, [][]byte) {}
func (f files) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var all [][]byte
	for _, tile := range tiles {
		data, err := os.ReadFile(filepath.Join(f.folder, "tile", strconv.Itoa(tile.L), name(tile.N, tile.W)))
		if err != nil {
			return nil, err
		}
		all = append(all, data)
	}
	return all, nil
}

// name is what C2SP's tlog-tiles calls a tile or a bundle in its row.
func name(index int64, width int) string {
	path := fmt.Sprintf("%03d", index%1000)
	for index >= 1000 {
		index /= 1000
		path = fmt.Sprintf("x%03d/%s", index%1000, path)
	}
	if width < 1<<height {
		path += fmt.Sprintf(".p/%d", width)
	}
	return path
}

// witness checks the cosignatures of one key.
type witness struct {
	name string
	key  ed25519.PublicKey
}

func (w witness) Name() string { return w.name }
func (w witness) KeyHash() uint32 {
	hash := sha256.Sum256(append([]byte(w.name+"\n\x04"), w.key...))
	return binary.BigEndian.Uint32(hash[:4])
}
func (w witness) Verify(message, signature []byte) bool {
	if len(signature) != 8+ed25519.SignatureSize {
		return false
	}
	text := fmt.Sprintf("cosignature/v1\ntime %d\n%s", binary.BigEndian.Uint64(signature), message)
	return ed25519.Verify(w.key, []byte(text), signature[8:])
}

// verifiers knows the keys of the log's operators, and of each witness the key that its name says.
type verifiers struct{ log []note.Verifier }

func (v verifiers) Verifier(name string, hash uint32) (note.Verifier, error) {
	for _, operator := range v.log {
		if name == operator.Name() && hash == operator.KeyHash() {
			return operator, nil
		}
	}
	key, err := hex.DecodeString(strings.TrimPrefix(name, "manta/witness/"))
	if err != nil || len(key) != ed25519.PublicKeySize || !strings.HasPrefix(name, "manta/witness/") {
		return nil, &note.UnknownVerifierError{Name: name, KeyHash: hash}
	}
	found := witness{name, key}
	if found.KeyHash() != hash {
		return nil, &note.UnknownVerifierError{Name: name, KeyHash: hash}
	}
	return found, nil
}

// signed is the tree that a checkpoint is of, and how many of the log's operators and how many others signed it.
type signed struct {
	tree                 tlog.Tree
	operators, witnesses int
}

// operatorsOf returns the keys in the folder, by which the log's notes are signed, and for each what witnesses' lines call it.
func operatorsOf(folder string) ([]note.Verifier, map[string]note.Verifier, error) {
	keys, err := os.ReadFile(filepath.Join(folder, "key"))
	if err != nil {
		return nil, nil, err
	}
	operators, named := []note.Verifier{}, map[string]note.Verifier{}
	for _, key := range strings.Fields(string(keys)) {
		operator, err := note.NewVerifier(key)
		if err != nil {
			return nil, nil, err
		}
		data, err := base64.StdEncoding.DecodeString(strings.SplitN(key, "+", 3)[2])
		if err != nil {
			return nil, nil, err
		}
		operators = append(operators, operator)
		named["manta/witness/"+hex.EncodeToString(data[1:])] = operator
	}
	if len(operators) == 0 {
		return nil, nil, errors.New("the file of keys is empty")
	}
	return operators, named, nil
}

// head returns what a checkpoint is of, its signatures checked, the log's by the keys in the folder. How many have to sign the manifest says.
func head(folder, file string) (signed, error) {
	operators, named, err := operatorsOf(folder)
	if err != nil {
		return signed{}, err
	}
	origin := operators[0].Name()
	message, err := os.ReadFile(file)
	if err != nil {
		return signed{}, err
	}
	opened, err := note.Open(message, verifiers{operators})
	if err != nil {
		return signed{}, err
	}
	byLog, byOperators, witnesses := false, map[uint32]bool{}, 0
	for _, signature := range opened.Sigs {
		if signature.Name == origin {
			byLog, byOperators[signature.Hash] = true, true
		} else if operator, isOne := named[signature.Name]; isOne {
			byOperators[operator.KeyHash()] = true
		} else {
			witnesses++
		}
	}
	if !byLog {
		return signed{}, errors.New("the log's own signature is missing")
	}
	lines := strings.Split(opened.Text, "\n")
	if len(lines) < 4 || lines[0] != origin {
		return signed{}, fmt.Errorf("the checkpoint is of %q, the key of %q", lines[0], origin)
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil {
		return signed{}, err
	}
	root, err := tlog.ParseHash(lines[2])
	return signed{tlog.Tree{N: size, Hash: root}, len(byOperators), witnesses}, err
}

// prefix checks that the tree of an older tree head is a prefix of a tree, and returns that head.
func prefix(folder, file string, tree tlog.Tree, reader tlog.HashReader) (signed, error) {
	before, err := head(folder, file)
	if err != nil {
		return before, err
	}
	proof, err := tlog.ProveTree(tree.N, before.tree.N, reader)
	if err != nil {
		return before, err
	}
	return before, tlog.CheckTree(proof, tree.N, tree.Hash, before.tree.N, before.tree.Hash)
}

// entries calls see with each entry of the bundles, in order.
func entries(folder string, size int64, see func(int64, []byte) error) error {
	for index := int64(0); index<<height < size; index++ {
		width := size - index<<height
		if width > 1<<height {
			width = 1 << height
		}
		data, err := os.ReadFile(filepath.Join(folder, "tile", "entries", name(index, int(width))))
		if err != nil {
			return err
		}
		for place := index << height; place < index<<height+width; place++ {
			if len(data) < 2 || len(data)-2 < int(binary.BigEndian.Uint16(data)) {
				return fmt.Errorf("the bundle of entry %d is cut off", place)
			}
			end := 2 + int(binary.BigEndian.Uint16(data))
			if err := see(place, data[2:end]); err != nil {
				return err
			}
			data = data[end:]
		}
		if len(data) != 0 {
			return fmt.Errorf("bundle %d has more than its entries", index)
		}
	}
	return nil
}

func check(folder, older string) error {
	newest, err := head(folder, filepath.Join(folder, "checkpoint"))
	if err != nil {
		return err
	}
	tree := newest.tree
	reader := tlog.TileHashReader(tree, files{folder})
	err = entries(folder, tree.N, func(place int64, entry []byte) error {
		hash := tlog.RecordHash(entry)
		proof, err := tlog.ProveRecord(tree.N, place, reader)
		if err != nil {
			return err
		}
		return tlog.CheckRecord(proof, tree.N, tree.Hash, place, hash)
	})
	if err != nil {
		return err
	}
	root := hex.EncodeToString(tree.Hash[:])
	fmt.Printf("%d entries are under the signed root %s; operators: %d, witnesses: %d\n", tree.N, root, newest.operators, newest.witnesses)
	if _, err := os.Stat(filepath.Join(folder, "witnessed")); err == nil {
		before, err := prefix(folder, filepath.Join(folder, "witnessed"), tree, reader)
		if err != nil {
			return err
		}
		if before.operators+before.witnesses < 2 {
			return errors.New("witnessed has no cosignature that holds")
		}
		fmt.Printf("the tree of %d entries, cosigned by %d, is a prefix of it\n", before.tree.N, before.witnesses)
	}
	if older == "" {
		return nil
	}
	before, err := prefix(folder, older, tree, reader)
	if err != nil {
		return err
	}
	fmt.Printf("the tree of %d entries is a prefix of it\n", before.tree.N)
	return nil
}

func main() {
	if len(os.Args) != 2 && len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: main.go FOLDER [OLDER_CHECKPOINT]")
		os.Exit(2)
	}
	if err := check(os.Args[1], strings.Join(os.Args[2:], "")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
