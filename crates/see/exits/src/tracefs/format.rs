//! Where the fields of an event are: the `format` file of a tracepoint.

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the event.
    pub offset: usize,
    /// Its bytes: 1, 2, 4 or 8.
    pub size: usize,
}

impl Field {
    /// Its value; `None` when the event is shorter.
    pub fn of(self, event: &[u8]) -> Option<u64> {
        let bytes = event.get(self.offset..self.offset.checked_add(self.size)?)?;
        let mut value = [0; 8];
        value.get_mut(..self.size)?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    }
}

/// The layout of a tracepoint's events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// The number that its events carry.
    pub id: u16,
    fields: Vec<(String, Field)>,
}

impl Format {
    /// Reads a `format` file; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?.trim().parse().ok()?;
        let fields = text.lines().filter_map(field).collect();
        Some(Self { id, fields })
    }

    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, field)| *field)
    }
}

/// `field:unsigned int exit_reason;<tab>offset:8;<tab>size:4;<tab>signed:0;`
pub(super) fn field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
    let name = parts.next()?.rsplit([' ', '*']).next()?.to_owned();
    let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse().ok();
    let (offset, size) = (number("offset:")?, number("size:")?);
    Some((name, Field { offset, size }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name: kvm_exit\nID: 103\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:u32 isa;\toffset:24;\tsize:4;\tsigned:0;\n\nprint fmt: \"vcpu %u\", REC->vcpu_id\n";

    #[test]
    fn fields_are_where_the_kernel_says() {
        let format = Format::parse(TEXT).unwrap();
        assert_eq!(format.id, 103);
        assert_eq!(format.field("exit_reason"), Some(Field { offset: 8, size: 4 }));
        assert_eq!(format.field("nothing"), None);
        assert_eq!(Format::parse("name: x\n"), None);
    }

    #[test]
    fn a_value_is_read_or_missing() {
        let event = [0, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0];
        assert_eq!(Field { offset: 2, size: 2 }.of(&event), Some(0x3412));
        assert_eq!(Field { offset: 2, size: 4 }.of(&event), Some(0x7856_3412));
        assert_eq!(Field { offset: 8, size: 4 }.of(&event), None);
        assert_eq!(Field { offset: 0, size: 9 }.of(&event), None, "no number has nine bytes");
        assert_eq!(Field { offset: usize::MAX, size: 2 }.of(&event), None);
    }
}
