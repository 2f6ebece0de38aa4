//! `--vm` and `[[vm]]`: one VM of several on a host.

use crate::failure::{Failure, unknown};
use crate::guest_memory::GuestMemory;
use crate::prepared;
use crate::values::{stack, vllc};
use crate::workload::Input;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use strata_engine::{Colours, PagePlacement, StackKind};
use strata_hardware::WayMask;
use strata_stream::{WorkloadInfo, command_line};
use strata_text::number::exact_size;
use strata_workloads::Format;
use toml::{Table, Value};

/// A VM as the user describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VmArgs {
    /// Name.
    pub name: String,
    /// Its stack, if it has one of its own.
    pub stack: Option<StackKind>,
    /// Its policy, if it has one of its own.
    pub policy: Option<String>,
    /// Its memory, if that is not left to be chosen.
    pub memory: Option<GuestMemory>,
    /// The cores that it is bound to.
    pub cores: Vec<u32>,
    /// Seconds after which its program starts.
    pub start: f64,
    /// Its program begins anew until the others have ended.
    pub repeat: bool,
    /// How its kernel places base pages, if that is its own.
    pub placement: Option<PagePlacement>,
    /// The ways of the last-level cache that it may fill, if these are its own.
    pub llc_ways: Option<WayMask>,
    /// The colours of the last-level cache that it is told of, if that is its own.
    pub vllc: Option<Colours>,
    /// Bytes that the host takes of its memory through a balloon, if these are its own.
    pub balloon: Option<u64>,
    /// The VM that it runs in.
    pub within: Option<String>,
    /// The format of its trace, if that was said.
    pub format: Option<Format>,
    /// What it runs; nothing for a guest hypervisor.
    pub input: Option<Input>,
}

/// Keys, each with what it takes. The last three take all that follows.
pub const KEYS: [(&str, &str); 15] = [
    ("stack", "vm or nested"),
    ("policy", "a policy"),
    ("memory", "a size, or 3x for a multiple of what it touches"),
    ("cores", "the cores it is bound to, such as 0-3 or 0+2"),
    ("start", "seconds of simulated time until its program starts, 100000 at most"),
    ("repeat", "true to begin anew until the others have ended"),
    ("placement", "where its kernel puts base pages, as --placement takes it"),
    ("llc-ways", "the ways of the last-level cache it may fill, as --llc-ways takes them"),
    (
        "vllc",
        "the last-level cache it is told of, as --vllc takes it: its colours, or its size and ways",
    ),
    ("balloon", "a size that the host takes of its memory, and gives back, in turn"),
    ("in", "the VM it runs in, which has no program then"),
    ("format", "the format of its trace"),
    ("workload", "a generator; all that follows"),
    ("trace", "a recording or trace; all that follows"),
    ("program", "a program and its arguments; all that follows"),
];

/// The latest that a program can start, in simulated seconds: hosts are modelled for far less.
const LATEST_START: f64 = 1e5;

/// The longest name: tables have it at the head of their rows.
const LONGEST_NAME: usize = 64;

/// Those that take all that follows.
const LAST: [&str; 3] = ["workload", "trace", "program"];

impl VmArgs {
    /// Reads `NAME[:key=value,...]`.
    ///
    /// # Errors
    /// One line: cause and remedy.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, mut rest) = text.split_once(':').unwrap_or((text, ""));
        let mut vm = Self::named(name)?;
        let mut keys = Vec::new();
        while !rest.is_empty() {
            let (key, value) = rest.split_once('=').ok_or_else(|| {
                format!("VM '{name}': '{rest}' is no key with a value; write key=value")
            })?;
            if keys.contains(&key) {
                return Err(format!("VM '{name}': {key} is given twice; give it once"));
            }
            keys.push(key);
            let (value, after) = match LAST.contains(&key) {
                true => (value, ""),
                false => value.split_once(',').unwrap_or((value, "")),
            };
            rest = after;
            if key != "program" {
                vm.set(key, value)?;
                continue;
            }
            let words = shlex::split(value)
                .ok_or_else(|| format!("VM '{name}': a quote of its program is not closed"))?;
            vm.set_program(words)?;
        }
        Ok(vm)
    }

    /// Reads a table of `[[vm]]`.
    ///
    /// # Errors
    /// One line: cause and remedy.
    pub fn from_table(table: &Table) -> Result<Self, Failure> {
        let name = match table.get("name") {
            Some(Value::String(name)) => name,
            Some(_) => {
                return Err(Failure::usage("the name of a [[vm]] is a text; write name = \"...\""));
            }
            None => return Err(Failure::usage("a [[vm]] has no name; write name = \"...\"")),
        };
        let mut vm = Self::named(name).map_err(Failure::usage)?;
        // What it runs comes last: its format must be known.
        let mut keys: Vec<_> = table.iter().filter(|(key, _)| *key != "name").collect();
        keys.sort_by_key(|(key, _)| LAST.contains(&key.as_str()));
        for (key, value) in keys {
            let text = |value: &Value| match value {
                Value::String(text) => Some(text.clone()),
                Value::Integer(number) => Some(number.to_string()),
                Value::Float(number) => Some(number.to_string()),
                Value::Boolean(switch) => Some(switch.to_string()),
                Value::Array(_) | Value::Table(_) | Value::Datetime(_) => None,
            };
            let texts = |values: &[Value]| values.iter().map(text).collect::<Option<Vec<_>>>();
            let set = match (key.as_str(), value) {
                ("program", Value::Array(words)) => texts(words).map(|words| vm.set_program(words)),
                ("cores", Value::Array(cores)) => {
                    texts(cores).map(|cores| vm.set("cores", &cores.join("+")))
                }
                ("program", _) => None,
                (key, value) => text(value).map(|text| vm.set(key, &text)),
            };
            match set {
                Some(set) => set.map_err(Failure::usage)?,
                None => {
                    let like = if key == "program" {
                        "a list: [\"name\", \"argument\"]"
                    } else {
                        "a text, a number or true/false"
                    };
                    return Err(Failure::usage(format!("VM '{name}': '{key}' takes {like}")));
                }
            }
        }
        Ok(vm)
    }

    /// A key that it has and that says something of the program it runs.
    pub fn key_of_programs(&self) -> Option<&'static str> {
        let keys = [
            (self.placement.is_some(), "placement"),
            (self.vllc.is_some(), "vllc"),
            (!self.cores.is_empty(), "cores"),
            (self.start > 0.0, "start"),
            (self.repeat, "repeat"),
            (self.format.is_some(), "format"),
        ];
        keys.into_iter().find_map(|(given, key)| given.then_some(key))
    }

    /// Whether it runs a program.
    pub fn is_live(&self) -> bool {
        self.input.as_ref().is_some_and(Input::is_live)
    }

    /// What is known of its program before it starts; of nothing else anything.
    pub fn live_info(&self) -> WorkloadInfo {
        self.input.as_ref().and_then(Input::live_info).unwrap_or_default()
    }

    fn named(name: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(plain) {
            return Err(format!(
                "'{name}' is no name of a VM; write NAME[:key=value,...], with a name of letters, \
                 digits, '-', '_' and '.'"
            ));
        }
        if name.len() > LONGEST_NAME {
            let length = name.len();
            return Err(format!(
                "the name of a VM has {length} characters; give it at most {LONGEST_NAME}"
            ));
        }
        Ok(Self { name: name.to_owned(), ..Self::default() })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let name = self.name.clone();
        let wrong = |why: String| format!("VM '{name}': {why}");
        let takes = || {
            let (_, takes) = KEYS.iter().find(|(other, _)| *other == key).expect("it is a key");
            wrong(format!("'{value}' is not what {key} takes; give {takes}"))
        };
        match key {
            "stack" => self.stack = Some(stack(value).map_err(wrong)?),
            "policy" => self.policy = Some(value.to_owned()),
            "memory" => {
                let memory = GuestMemory::parse(value).map_err(&wrong)?;
                memory.check("memory=").map_err(|error| wrong(error.message))?;
                self.memory = Some(memory);
            }
            "cores" => self.cores = cores(value).ok_or_else(takes)?,
            "start" => {
                let seconds = value.parse().ok().filter(|s| (0.0..=LATEST_START).contains(s));
                self.start = seconds.ok_or_else(takes)?;
            }
            "repeat" => self.repeat = value.parse().map_err(|_| takes())?,
            "placement" => {
                let placement = value.parse::<PagePlacement>();
                self.placement = Some(placement.map_err(|error| wrong(error.to_string()))?);
            }
            "llc-ways" => {
                let ways = value.parse::<WayMask>();
                self.llc_ways = Some(ways.map_err(|error| wrong(error.to_string()))?);
            }
            "vllc" => self.vllc = Some(vllc(value).map_err(wrong)?),
            "balloon" => {
                self.balloon = Some(strata_text::parse_size(value).map_err(wrong)?);
            }
            "in" if value.is_empty() => return Err(takes()),
            "in" => self.within = Some(value.to_owned()),
            "format" => {
                let format: Format = value.parse().map_err(wrong)?;
                self.format = Some(format);
                if let Some(Input::Trace(_, of_trace)) = &mut self.input {
                    *of_trace = Some(format);
                }
            }
            "workload" => {
                let input = Input::named(value).map_err(|failure| wrong(failure.message))?;
                self.run(input)?;
            }
            "trace" => self.run(Input::Trace(PathBuf::from(value), self.format))?,
            _ => {
                let all = "keys are ".to_owned() + &KEYS.map(|(key, _)| key).join(", ");
                return Err(wrong(unknown("key", key, KEYS.map(|(key, _)| key), &all)));
            }
        }
        Ok(())
    }

    fn set_program(&mut self, words: Vec<String>) -> Result<(), String> {
        if words.is_empty() {
            return Err(format!("VM '{}': its program has no name; give one", self.name));
        }
        self.run(Input::Live(words.into_iter().map(OsString::from).collect()))
    }

    fn run(&mut self, input: Input) -> Result<(), String> {
        if self.input.is_some() {
            return Err(format!(
                "VM '{}' runs two things; give one of workload, trace and program",
                self.name
            ));
        }
        self.input = Some(input);
        Ok(())
    }
}

/// As [`VmArgs::parse`] reads it.
impl fmt::Display for VmArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores: Vec<_> = self.cores.iter().map(u32::to_string).collect();
        let keys = [
            ("stack", self.stack.map(|stack| stack.to_string())),
            ("policy", self.policy.clone()),
            ("memory", self.memory.map(|memory| memory.to_string())),
            ("cores", (!cores.is_empty()).then(|| cores.join("+"))),
            ("start", (self.start > 0.0).then(|| self.start.to_string())),
            ("repeat", self.repeat.then(|| "true".to_owned())),
            ("placement", self.placement.map(|placement| placement.to_string())),
            ("llc-ways", self.llc_ways.map(|ways| ways.to_string())),
            ("vllc", self.vllc.map(|colours| colours.count().to_string())),
            ("balloon", self.balloon.map(exact_size)),
            ("in", self.within.clone()),
            ("format", self.format.map(|format| format.name().to_owned())),
            match &self.input {
                Some(Input::Live(words)) => {
                    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
                    ("program", Some(command_line(words.iter().map(|word| &**word))))
                }
                Some(Input::Trace(path, _)) => ("trace", Some(path.display().to_string())),
                Some(Input::Generator(spec)) => ("workload", Some(spec.clone())),
                Some(Input::Prepared(name, _)) => {
                    ("workload", Some(format!("{}{name}", prepared::PREFIX)))
                }
                None => ("workload", None),
            },
        ];
        f.write_str(&self.name)?;
        let given = keys.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        for (index, word) in given.enumerate() {
            write!(f, "{}{word}", if index == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl FromStr for VmArgs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

/// Cores in a list joined by `+`, of numbers and ranges, in order and each once.
fn cores(text: &str) -> Option<Vec<u32>> {
    let mut cores = Vec::new();
    for part in text.split('+') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // More than any model has.
        if first > last || last >= 1 << 16 {
            return None;
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_read_as_it_is_shown() {
        for text in [
            "a",
            "a:policy=thp,workload=random:size=64MiB,accesses=1M",
            "web.1:stack=nested,memory=1.5x,cores=0+2+3,start=0.5,repeat=true,trace=a,b.strata",
            "d:repeat=true,placement=best-bin,llc-ways=0x3c,vllc=8,balloon=64MiB,workload=random:size=64MiB",
            "b:in=hypervisor,format=champsim,trace=x.xz",
            "c:program=sh -c 'echo \"a b\"'",
        ] {
            assert_eq!(VmArgs::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(VmArgs::parse("a:cores=0-3+2").unwrap().cores, [0, 1, 2, 3]);
    }

    #[test]
    fn a_table_says_what_the_command_line_says() {
        let table = |text: &str| VmArgs::from_table(&text.parse().unwrap());
        let written = table(
            "name = \"a\"\nstack = \"vm\"\nmemory = \"1GiB\"\ncores = [0, 2]\nstart = 1.5\n\
             repeat = true\nprogram = [\"ls\", \"-l a\"]\n",
        );
        let text = "a:stack=vm,memory=1GiB,cores=0+2,start=1.5,repeat=true,program=ls '-l a'";
        assert_eq!(written.unwrap(), VmArgs::parse(text).unwrap());
        for (wrong, why) in [
            ("stack = \"vm\"", "has no name"),
            ("name = \"a\"\nprogram = \"ls\"", "takes a list"),
            ("name = \"a\"\npolcy = \"thp\"", "did you mean 'policy'"),
            ("name = \"a\"\nmemory = [1]", "takes a text"),
        ] {
            let message = table(wrong).unwrap_err().message;
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn mistakes_are_named_with_their_remedy() {
        for (text, why) in [
            ("", "is no name"),
            ("a b", "is no name"),
            ("a:thp", "write key=value"),
            ("a:stak=vm", "did you mean 'stack'"),
            ("a:stack=vms", "did you mean 'vm'"),
            ("a:memory=1MiB", "at least 64MiB"),
            ("a:cores=3-1", "such as 0-3"),
            ("a:cores=", "such as 0-3"),
            ("a:start=-1", "seconds"),
            ("a:start=inf", "seconds"),
            ("a:start=1e10", "100000 at most"),
            ("a:repeat=yes", "true"),
            ("a:placement=colour", "choose linux, random"),
            ("a:llc-ways=0", "at least 1 way"),
            ("a:llc-ways=0x5", "such as 0x7"),
            ("a:vllc=0", "such as 512KiB/4"),
            ("a:vllc=4MiB/3", "multiple of ways x 64"),
            ("a:vllc=6KiB/1", "not a whole number of pages"),
            ("a:balloon=much", "much"),
            ("a:format=elf", "format"),
            ("a:workload=randm", "did you mean"),
            ("a:program=", "has no name"),
            ("a:program='x", "not closed"),
            ("a:cores=0,cores=1", "cores is given twice"),
        ] {
            let message = VmArgs::parse(text).unwrap_err();
            assert!(message.contains(why), "{text}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
