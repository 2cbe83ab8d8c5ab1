// The words of code in kinds: comments, strings, numbers and keywords, line by line.
//
// One reader for all languages, told apart by how their comments and strings look and by their keywords. What it takes
// for one kind and is another only has another colour.

const SLASHES = { line: "//", open: "/*", close: "*/", quotes: "\"'`" };
const HASH = { line: "#", quotes: "\"'" };
const words = (text) => new Set(text.split(" "));

const C = words("auto bool break case char class const constexpr continue default delete do double else enum extern false "
  + "float for goto if inline int long namespace new nullptr NULL private protected public return short signed sizeof "
  + "static struct switch template this throw true try catch typedef typename union unsigned using virtual void while");
const SCRIPT = words("abstract any as async await boolean break case catch class const continue default delete do else "
  + "enum export extends false finally for from function if implements import in instanceof interface let new null "
  + "number of private public readonly return static string super switch this throw true try type typeof undefined var "
  + "void while yield");
const RUST = words("as async await bool break char const continue crate dyn else enum extern f32 f64 false fn for i32 i64 "
  + "if impl in let loop match mod move mut pub ref return self Self static str struct super trait true type u8 u32 u64 "
  + "unsafe use usize where while");
const GO = words("break case chan const continue default defer else false for func go if import int interface map nil "
  + "package range return select string struct switch true type var bool byte error float64");
const JAVA = words("abstract boolean break byte case catch char class const continue default do double else enum extends "
  + "false final finally float for fun if implements import in instanceof int interface internal long namespace new null "
  + "object override package private protected public return short static string super switch this throw throws true "
  + "try using val var void when while");
const PYTHON = words("and as assert async await break class continue def del elif else except False finally for "
  + "from global if import in is lambda None nonlocal not or pass raise return self True try while with yield");
const RUBY = words("and begin break case class def do else elsif end ensure false for if in module next nil not or "
  + "require rescue return self super then true unless until when while yield");
const SHELL = words("case do done elif else esac export fi for function if in local return set then unset until while "
  + "cd echo exit sudo true false");
const SQL = words("add all alter and as asc between by case create delete desc distinct drop else end exists from group "
  + "having in index insert into is join key left like limit not null on or order outer primary right select set table "
  + "then union unique update values when where with");
const DATA = words("true false null yes no on off");

const LANGUAGES = {};
function add(names, language) {
  for (const name of names.split(" ")) LANGUAGES[name] = language;
}
add("c h cpp c++ cc hpp cuda cu objc", { ...SLASHES, quotes: "\"'", keywords: C });
add("js javascript jsx mjs ts typescript tsx", { ...SLASHES, keywords: SCRIPT });
add("rust rs", { ...SLASHES, quotes: "\"", keywords: RUST });
add("go golang", { ...SLASHES, keywords: GO });
add("java kotlin kt scala cs csharp c# swift dart php", { ...SLASHES, quotes: "\"'", keywords: JAVA });
add("css scss less", { ...SLASHES, line: null, keywords: new Set() });
add("json jsonc", { ...SLASHES, quotes: "\"", keywords: DATA });
add("python py python3", { ...HASH, keywords: PYTHON });
add("ruby rb", { ...HASH, keywords: RUBY });
add("sh bash shell zsh fish console dockerfile makefile make", { ...HASH, keywords: SHELL });
add("toml yaml yml ini", { ...HASH, keywords: DATA });
add("sql", { line: "--", open: "/*", close: "*/", quotes: "'", keywords: SQL, anyCase: true });
add("lua", { line: "--", quotes: "\"'", keywords: words("and break do else elseif end false for function if in local nil not or repeat return then true until while") });

/// The rules of a language by its name, or null where there are none.
export function languageOf(name) {
  const key = name.toLowerCase();
  return Object.hasOwn(LANGUAGES, key) ? LANGUAGES[key] : null;
}

const WORD = /[A-Za-z_$][\w$]*/y;
const NUMBER = /\d[\w.]*/y;

function at(pattern, line, index) {
  pattern.lastIndex = index;
  return pattern.exec(line)?.[0] ?? "";
}

/// The end of a string that begins at `index`: behind its closing quote, or the end of the line.
function stringEnd(line, index) {
  const quote = line[index];
  for (let end = index + 1; end < line.length; end += 1) {
    if (line[end] === "\\") end += 1;
    else if (line[end] === quote) return end + 1;
  }
  return line.length;
}

/// Takes a line apart into `[kind, text]`, the kind null for plain text; `inside` says whether it begins in a comment of
/// several lines. Returns the parts and whether the next line does.
export function partsOf(line, language, inside) {
  const parts = [];
  const push = (kind, text) => {
    if (!text) return;
    if (parts.length && parts.at(-1)[0] === kind) parts.at(-1)[1] += text;
    else parts.push([kind, text]);
  };
  let index = 0;
  const comment = (from) => {
    const close = line.indexOf(language.close, from);
    const end = close < 0 ? line.length : close + language.close.length;
    push("comment", line.slice(index, end));
    index = end;
    return close < 0;
  };
  let open = inside && comment(0);
  while (index < line.length) {
    const letter = line[index];
    if (language.open && line.startsWith(language.open, index)) {
      open = comment(index + language.open.length);
    } else if (language.line && line.startsWith(language.line, index)) {
      push("comment", line.slice(index));
      index = line.length;
    } else if (language.quotes.includes(letter)) {
      const end = stringEnd(line, index);
      push("string", line.slice(index, end));
      index = end;
    } else {
      const word = at(WORD, line, index);
      const number = word ? "" : at(NUMBER, line, index);
      const text = word || number || letter;
      const known = language.keywords.has(language.anyCase ? word.toLowerCase() : word);
      push(number ? "number" : known ? "keyword" : null, text);
      index += text.length;
    }
  }
  return [parts, open];
}
