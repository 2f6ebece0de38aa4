//! Columns as an Arrow stream, through Arrow's C interfaces (format version 1.0): plain structures that
//! pandas, polars and pyarrow read, made here so that nothing of Arrow is linked.
//!
//! ```text
//!  stream --get_schema--> struct of int64, float64, utf8
//!         --get_next----> one array of structs, then the end
//! ```
//!
//! Whoever gets a structure calls its `release`, which frees what `private` owns.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use strata::tidy::{Cells, Column};

/// `ArrowSchema`.
#[repr(C)]
struct Schema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut Schema,
    dictionary: *mut Schema,
    release: Option<unsafe extern "C" fn(*mut Schema)>,
    private: *mut c_void,
}

/// `ArrowArray`.
#[repr(C)]
struct Array {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut Array,
    dictionary: *mut Array,
    release: Option<unsafe extern "C" fn(*mut Array)>,
    private: *mut c_void,
}

/// `ArrowArrayStream`.
#[repr(C)]
pub struct Stream {
    get_schema: Option<unsafe extern "C" fn(*mut Stream, *mut Schema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut Stream, *mut Array) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut Stream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut Stream)>,
    private: *mut c_void,
}

// SAFETY: what it points to is a `Streamed`, which may go to another thread; only one uses it at a time.
unsafe impl Send for Stream {}

/// What a stream owns.
struct Streamed {
    columns: Arc<Vec<Column>>,
    is_over: bool,
}

/// What a schema or an array owns.
struct Owned<T> {
    /// Bytes that the structure points to.
    _buffers: Vec<Vec<u8>>,
    _texts: Vec<CString>,
    pointers: Vec<*const c_void>,
    children: Vec<*mut T>,
}

/// A value may be missing: `ARROW_FLAG_NULLABLE`.
const NULLABLE: i64 = 2;

impl Stream {
    /// Of these columns.
    pub fn of(columns: Arc<Vec<Column>>) -> Self {
        Self {
            get_schema: Some(get_schema),
            get_next: Some(get_next),
            get_last_error: Some(get_last_error),
            release: Some(release_stream),
            private: Box::into_raw(Box::new(Streamed { columns, is_over: false })).cast(),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Whoever took the stream over left no release behind.
        if let Some(release) = self.release {
            // SAFETY: it is a stream of ours that nobody released.
            unsafe { release(self) }
        }
    }
}

unsafe extern "C" fn get_schema(stream: *mut Stream, out: *mut Schema) -> c_int {
    // SAFETY: the interface promises a stream that is not released, and a place for a schema.
    unsafe {
        let streamed = &*(*stream).private.cast::<Streamed>();
        let children = streamed.columns.iter().map(schema_of).collect();
        out.write(schema("+s", "", 0, children));
    }
    0
}

unsafe extern "C" fn get_next(stream: *mut Stream, out: *mut Array) -> c_int {
    // SAFETY: as for `get_schema`.
    unsafe {
        let streamed = &mut *(*stream).private.cast::<Streamed>();
        if std::mem::replace(&mut streamed.is_over, true) {
            // The end is an array that is released already.
            (*out).release = None;
            return 0;
        }
        let rows = streamed.columns.first().map_or(0, |column| column.cells.len());
        let children = streamed.columns.iter().map(|column| array_of(&column.cells)).collect();
        out.write(array(rows, 0, vec![None], children));
    }
    0
}

unsafe extern "C" fn get_last_error(_stream: *mut Stream) -> *const c_char {
    ptr::null()
}

unsafe extern "C" fn release_stream(stream: *mut Stream) {
    // SAFETY: the interface promises that this is called once.
    unsafe {
        drop(Box::from_raw((*stream).private.cast::<Streamed>()));
        (*stream).release = None;
    }
}

fn schema_of(column: &Column) -> Schema {
    let format = match column.cells {
        Cells::Whole(_) => "l",
        Cells::Real(_) => "g",
        Cells::Text(_) => "u",
    };
    schema(format, &column.name, NULLABLE, Vec::new())
}

fn schema(format: &str, name: &str, flags: i64, children: Vec<Schema>) -> Schema {
    // No name has a zero byte in it.
    let text = |text: &str| CString::new(text).unwrap_or_default();
    let texts = vec![text(format), text(name)];
    let children: Vec<*mut Schema> =
        children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect();
    let (format, name) = (texts[0].as_ptr(), texts[1].as_ptr());
    let mut owned =
        Box::new(Owned { _buffers: Vec::new(), _texts: texts, pointers: Vec::new(), children });
    Schema {
        format,
        name,
        metadata: ptr::null(),
        flags,
        n_children: owned.children.len() as i64,
        children: owned.children.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release_schema),
        private: Box::into_raw(owned).cast(),
    }
}

unsafe extern "C" fn release_schema(schema: *mut Schema) {
    // SAFETY: the interface promises that this is called once; whoever took a child over left it without
    // a release.
    unsafe {
        let owned = Box::from_raw((*schema).private.cast::<Owned<Schema>>());
        for child in &owned.children {
            let mut child = Box::from_raw(*child);
            if let Some(release) = child.release {
                release(&mut *child);
            }
        }
        (*schema).release = None;
    }
}

fn array_of(cells: &Cells) -> Array {
    fn whole<const N: usize, T>(cells: &[Option<T>], bytes: impl Fn(&T) -> [u8; N]) -> Array {
        let values = cells.iter().flat_map(|cell| cell.as_ref().map_or([0; N], &bytes)).collect();
        filled(cells, vec![values])
    }
    match cells {
        Cells::Whole(cells) => whole(cells, |cell| cell.to_le_bytes()),
        Cells::Real(cells) => whole(cells, |cell| cell.to_le_bytes()),
        Cells::Text(cells) => {
            let (mut ends, mut bytes) = (0i32.to_le_bytes().to_vec(), Vec::new());
            for cell in cells {
                bytes.extend_from_slice(cell.as_deref().unwrap_or_default().as_bytes());
                let end = i32::try_from(bytes.len()).expect("a table has no 2 GiB of text");
                ends.extend(end.to_le_bytes());
            }
            filled(cells, vec![ends, bytes])
        }
    }
}

/// An array of these buffers after that of what is there, a bit each, the lowest first.
fn filled<T>(cells: &[Option<T>], buffers: Vec<Vec<u8>>) -> Array {
    let missing = cells.iter().filter(|cell| cell.is_none()).count();
    let mut there = vec![0u8; cells.len().div_ceil(8)];
    for (index, _) in cells.iter().enumerate().filter(|(_, cell)| cell.is_some()) {
        there[index / 8] |= 1 << (index % 8);
    }
    let buffers = [Some(there)].into_iter().chain(buffers.into_iter().map(Some)).collect();
    array(cells.len(), missing, buffers, Vec::new())
}

fn array(
    length: usize,
    missing: usize,
    buffers: Vec<Option<Vec<u8>>>,
    children: Vec<Array>,
) -> Array {
    // An address is wanted for an empty buffer, too.
    let buffers = buffers.into_iter().map(|buffer| buffer.map(aligned));
    let buffers: Vec<Option<Vec<u8>>> = buffers.collect();
    let address = |buffer: &Option<Vec<u8>>| {
        buffer.as_ref().map_or(ptr::null(), |buffer| start(buffer).cast())
    };
    let pointers = buffers.iter().map(address).collect();
    let children: Vec<*mut Array> =
        children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect();
    let mut owned = Box::new(Owned {
        _buffers: buffers.into_iter().flatten().collect(),
        _texts: Vec::new(),
        pointers,
        children,
    });
    Array {
        length: length as i64,
        null_count: missing as i64,
        offset: 0,
        n_buffers: owned.pointers.len() as i64,
        n_children: owned.children.len() as i64,
        buffers: owned.pointers.as_mut_ptr(),
        children: owned.children.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release_array),
        private: Box::into_raw(owned).cast(),
    }
}

/// Bytes an address of which, [`start`], is a multiple of 8, as numbers want it.
fn aligned(bytes: Vec<u8>) -> Vec<u8> {
    let mut room = vec![0u8; bytes.len() + 8];
    let offset = room.as_ptr().align_offset(8);
    room[offset..offset + bytes.len()].copy_from_slice(&bytes);
    room
}

fn start(aligned: &[u8]) -> *const u8 {
    aligned[aligned.as_ptr().align_offset(8)..].as_ptr()
}

unsafe extern "C" fn release_array(array: *mut Array) {
    // SAFETY: as for `release_schema`.
    unsafe {
        let owned = Box::from_raw((*array).private.cast::<Owned<Array>>());
        for child in &owned.children {
            let mut child = Box::from_raw(*child);
            if let Some(release) = child.release {
                release(&mut *child);
            }
        }
        (*array).release = None;
    }
}
