//! Arguments of a plugin: `name=value`, as QEMU passes them on.

use std::ffi::{CStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The arguments of a plugin.
#[derive(Clone, Debug, Default)]
pub struct Arguments(Vec<Vec<u8>>);

impl Arguments {
    /// Those given to `qemu_plugin_install`.
    ///
    /// # Safety
    /// `argv` holds `argc` zero-terminated strings.
    pub unsafe fn new(argc: c_int, argv: *mut *mut c_char) -> Self {
        let count = usize::try_from(argc).unwrap_or(0);
        // SAFETY: by contract.
        let text = |index| unsafe { CStr::from_ptr(*argv.add(index)) };
        Self((0..count).map(|index| text(index).to_bytes().to_vec()).collect())
    }

    /// The value of the first argument of this name.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        let prefix = [name.as_bytes(), b"="].concat();
        self.0.iter().find_map(|argument| argument.strip_prefix(&prefix[..]))
    }

    /// The values of all arguments of this name that are text.
    pub fn texts(&self, name: &str) -> impl Iterator<Item = &str> {
        let prefix = format!("{name}=");
        let values = self.0.iter().filter_map(|argument| str::from_utf8(argument).ok());
        values.filter_map(move |argument| argument.strip_prefix(&prefix))
    }

    /// A value that is a path.
    ///
    /// # Errors
    /// When it is missing.
    pub fn path(&self, name: &str) -> Result<PathBuf, String> {
        let bytes =
            self.bytes(name).ok_or_else(|| format!("the plugin needs its argument {name}"))?;
        Ok(PathBuf::from(OsString::from_vec(bytes.to_vec())))
    }

    /// A value that is a decimal number, if it is there and one.
    pub fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        str::from_utf8(self.bytes(name)?).ok()?.parse().ok()
    }
}

impl From<&[&str]> for Arguments {
    fn from(texts: &[&str]) -> Self {
        Self(texts.iter().map(|text| text.as_bytes().to_vec()).collect())
    }
}
