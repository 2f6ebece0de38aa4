//! What cannot be captured is refused in one line, with the remedy, before anything starts.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use strata_capture::{Capture, Options};

fn refusal(program: impl AsRef<OsStr>, options: Options) -> String {
    let error = Capture::spawn(program.as_ref(), &[], options).expect_err("refused");
    let text = error.to_string();
    assert!(!text.contains('\n'));
    text
}

fn file(room: &Path, name: &str, content: &[u8], mode: u32) -> std::path::PathBuf {
    let path = room.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn unfit_programs_are_refused_with_the_remedy() {
    let room = tempfile::tempdir().unwrap();
    let none = Options::default;
    assert!(refusal("no-such-program-anywhere", none()).contains("no such program; check"));
    assert!(refusal(room.path().join("gone"), none()).contains("no such program"));
    assert!(refusal(room.path(), none()).contains("not a regular file"));
    let plain = file(room.path(), "plain", b"#!/bin/sh\n", 0o644);
    assert!(refusal(plain, none()).contains("chmod +x"));
    let text = file(room.path(), "text", b"echo\n", 0o755);
    assert!(refusal(text, none()).contains("give the interpreter first"));
    let other = file(room.path(), "other", b"\x7fELF\x01\x01\x01", 0o755);
    assert!(refusal(other, none()).contains("not an x86-64 program"));
    let lost = file(room.path(), "lost", b"#!/nowhere/sh\n", 0o755);
    let told = refusal(&lost, none());
    let expected = "its first line (#!) names an interpreter that cannot be run: /nowhere/sh: no \
                    such program";
    assert!(told.starts_with(lost.to_str().unwrap()) && told.contains(expected), "{told}");
    let foreign = file(room.path(), "foreign", b"#!/bin/sh\r\necho\r\n", 0o755);
    let told = refusal(foreign, none());
    assert!(told.contains(r"cannot be run: /bin/sh\r: no such program"), "{told}");
}

#[test]
fn a_missing_emulator_is_told_in_one_line() {
    let options = Options { qemu: Some("/nowhere/qemu-x86_64".into()), ..Options::default() };
    let text = refusal("true", options);
    assert_eq!(text, "/nowhere/qemu-x86_64: no emulator; install package qemu-user");
}

#[test]
fn a_missing_plugin_is_told_in_one_line() {
    let options = Options { plugin: Some("/nowhere/plugin.so".into()), ..Options::default() };
    let text = refusal("true", options);
    assert!(text.contains("/nowhere/plugin.so") && text.contains("STRATA_PLUGIN"), "{text}");
}

#[test]
fn a_program_the_emulator_cannot_load_ends_the_stream_with_an_error() {
    let room = tempfile::tempdir().unwrap();
    let mut head = vec![0u8; 64];
    head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    head[16..20].copy_from_slice(&[2, 0, 62, 0]);
    let broken = file(room.path(), "broken", &head, 0o755);
    let mut capture = Capture::spawn(broken.as_os_str(), &[], Options::default()).unwrap();
    let error = capture.wait().expect_err("nothing was run").to_string();
    assert!(error.contains("the emulator could not run it"), "{error}");
}
